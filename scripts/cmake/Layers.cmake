# SPDX-License-Identifier: Apache-2.0
# The folders of src/ in layering order, and the include paths that keep a file from including a later folder.
# A file of src/ includes headers with their folder, "judge/compare.hpp". Each folder is compiled with its own include
# path, <build>/layers/<folder>, which links to that folder and the ones before it, so an include of a later folder is
# not found.
set(CHECK_OPERATOR_LAYERS base abi tensor operator case contract device plugin_host run judge worker mutate report session cli)
# Most of their work is text, or waiting: -Og takes the compiler two thirds of its time at -O1, and suites take no longer. With
# -Og in the three of them that every launch passes through, too, suites would take 4 percent longer. The command line is not
# optimized at all.
set(CHECK_OPERATOR_LAUNCH_LAYERS device plugin_host run)
set(CHECK_OPERATOR_LIGHT_LAYERS ${CHECK_OPERATOR_LAUNCH_LAYERS} case contract worker mutate report session)
# Most of their work is in loops over elements.
set(CHECK_OPERATOR_LOOP_LAYERS reference judge)
set(CHECK_OPERATOR_FULL_LAYERS ${CHECK_OPERATOR_LAYERS})
list(REMOVE_ITEM CHECK_OPERATOR_FULL_LAYERS abi cli ${CHECK_OPERATOR_LOOP_LAYERS} ${CHECK_OPERATOR_LIGHT_LAYERS})

foreach(layer IN LISTS CHECK_OPERATOR_LAYERS)
  list(APPEND visible ${layer})
  file(REMOVE_RECURSE ${CMAKE_BINARY_DIR}/layers/${layer})
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/layers/${layer})
  foreach(folder IN LISTS visible)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${folder} ${CMAKE_BINARY_DIR}/layers/${layer}/${folder} SYMBOLIC)
  endforeach()
endforeach()

# share_precompiled_headers(TARGET GROUP HEADERS...): the first target of a group compiles the headers, the others use
# what it made. Targets of a group have the same compiler flags and definitions.
function(share_precompiled_headers target group)
  get_property(first GLOBAL PROPERTY CHECK_OPERATOR_PRECOMPILED_${group})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY CHECK_OPERATOR_PRECOMPILED_${group} ${target})
  endif()
endfunction()

# optimize_loops(TARGET): what loops over elements need of -O3. CPU kernels are at most 13 percent slower where measured, the
# suites take the time that they took, and the compiler two thirds of its time.
function(optimize_loops target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1 -ftree-vectorize -fvect-cost-model=dynamic -fpeel-loops)
  endif()
endfunction()

# add_layer(NAME SEES SOURCES...): an object library checkop_NAME whose sources may include the folders up to SEES.
function(add_layer name sees)
  add_library(checkop_${name} OBJECT ${ARGN})
  target_compile_features(checkop_${name} PUBLIC cxx_std_20)
  target_include_directories(checkop_${name} PRIVATE ${CMAKE_BINARY_DIR}/layers/${sees} ${CMAKE_BINARY_DIR}/generated)
  # Fused multiply-adds would make the gold's bits depend on the compiler.
  target_compile_options(checkop_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  set(headers <algorithm> <array> <chrono> <filesystem> <functional> <map> <optional> <string> <vector> <fmt/format.h>)
  if(name STREQUAL "cli")
    target_compile_options(checkop_cli PRIVATE -O0)
    target_precompile_headers(checkop_cli PRIVATE ${headers} <nlohmann/json.hpp> <CLI/CLI.hpp>)
  elseif(name IN_LIST CHECK_OPERATOR_LIGHT_LAYERS)
    set(level -Og)
    if(name IN_LIST CHECK_OPERATOR_LAUNCH_LAYERS)
      set(level -O1)
    endif()
    target_compile_options(checkop_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
    share_precompiled_headers(checkop_${name} light ${headers} <nlohmann/json.hpp>)
  elseif(name IN_LIST CHECK_OPERATOR_LOOP_LAYERS)
    optimize_loops(checkop_${name})
    if(NOT name STREQUAL "reference")  # which has headers of its own
      share_precompiled_headers(checkop_${name} loops ${headers})
    endif()
  else()
    share_precompiled_headers(checkop_${name} full ${headers})
  endif()
  set_target_properties(checkop_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(checkop_${name} PRIVATE ${CHECK_OPERATOR_FMT} nlohmann_json::nlohmann_json Threads::Threads)
endfunction()

# SPDX-License-Identifier: Apache-2.0
# Functions of find_package(check_operator).
set(CHECK_OPERATOR_TESTS_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/check_operatorTests.cmake)

# Fails the configuration if `function` got an unknown argument or lacks one of the `needed` arguments.
function(check_operator_require function prefix)
  if(${prefix}_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${function}: unknown argument '${${prefix}_UNPARSED_ARGUMENTS}'; see ${CMAKE_CURRENT_FUNCTION_LIST_FILE}")
  endif()
  foreach(needed IN LISTS ARGN)
    if(NOT ${prefix}_${needed})
      message(FATAL_ERROR "${function}: no ${needed} given; see ${CMAKE_CURRENT_FUNCTION_LIST_FILE}")
    endif()
  endforeach()
endfunction()

# check_operator_add_kernel(NAME SOURCES FILE... OPERATOR OP)
#
# Builds the plugin NAME.so from .cu, .cpp or .c files, one of which exports check_operator_plugin(). The plugin's table
# must contain a candidate NAME for the operator OP. A project with .cu files must enable CUDA.
function(check_operator_add_kernel name)
  cmake_parse_arguments(PARSE_ARGV 1 KERNEL "" "OPERATOR" "SOURCES")
  check_operator_require(check_operator_add_kernel KERNEL SOURCES OPERATOR)
  add_library(${name} MODULE ${KERNEL_SOURCES})
  target_link_libraries(${name} PRIVATE check_operator::plugin)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so" C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
                        CUDA_VISIBILITY_PRESET hidden CHECK_OPERATOR_OP ${KERNEL_OPERATOR})
endfunction()

# check_operator_add_checks(NAME CASES FILE... CANDIDATE KERNEL... [CONTRACT FILE] [DEVICE cpu|cuda|cuda:N]
#                           [ARGUMENTS ARG...] [EACH_CASE])
#
# Registers cases as CTest tests NAME/op/pass/candidate/dtype with the label check_operator. KERNEL is either a target
# of check_operator_add_kernel(), whose operator's cases are run, or a candidate that comes with check_operator.
# ARGUMENTS are further flags of the program. The tests are found when ctest starts. If there are none, or the program
# refuses, a single test NAME fails and says why.
# EACH_CASE makes a test of every case. A case then passes only if its own data can show an error: a case whose gold is
# all zero, or whose rows are all the same, is vacuous unless other cases of its operator, pass and dtype run with it.
function(check_operator_add_checks name)
  cmake_parse_arguments(PARSE_ARGV 1 CHECKS "EACH_CASE" "CONTRACT;DEVICE" "CASES;CANDIDATE;ARGUMENTS")
  check_operator_require(check_operator_add_checks CHECKS CASES CANDIDATE)
  if(NOT CMAKE_TESTING_ENABLED)
    if(DEFINED BUILD_TESTING AND NOT BUILD_TESTING)
      return()  # of include(CTest): the tests are disabled
    endif()
    message(FATAL_ERROR "check_operator_add_checks(${name}): there would be no tests; call enable_testing() first")
  endif()
  set(command "$<TARGET_FILE:check_operator::check_operator>")
  foreach(file IN LISTS CHECKS_CASES)
    get_filename_component(path ${file} ABSOLUTE)
    if(NOT EXISTS ${path})
      message(FATAL_ERROR "check_operator_add_checks(${name}): there are no cases at ${path}")
    endif()
    list(APPEND command --cases ${path})
  endforeach()
  set(ops)
  foreach(candidate IN LISTS CHECKS_CANDIDATE)
    list(APPEND command --candidate ${candidate})
    if(TARGET ${candidate})
      list(APPEND command --plugin "$<TARGET_FILE:${candidate}>")
      get_target_property(op ${candidate} CHECK_OPERATOR_OP)
      if(op)
        list(APPEND ops ${op})
      endif()
    endif()
  endforeach()
  list(REMOVE_DUPLICATES ops)
  if(ops)
    list(JOIN ops "," ops)
    list(APPEND command --op ${ops})
  endif()
  if(CHECKS_CONTRACT)
    get_filename_component(path ${CHECKS_CONTRACT} ABSOLUTE)
    list(APPEND command --contract ${path})
  endif()
  if(CHECKS_DEVICE)
    list(APPEND command --device ${CHECKS_DEVICE})
  endif()
  list(APPEND command ${CHECKS_ARGUMENTS})

  set(quoted)
  foreach(argument IN LISTS command)
    string(APPEND quoted " [==[${argument}]==]")
  endforeach()
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_checks)
  file(GENERATE OUTPUT ${script}-$<CONFIG>.cmake CONTENT
"set(CHECKS_NAME [==[${name}]==])
set(CHECKS_COMMAND${quoted})
set(CHECKS_DEVICE [==[${CHECKS_DEVICE}]==])
set(CHECKS_EACH_CASE ${CHECKS_EACH_CASE})
set(CHECKS_FOLDER [==[${CMAKE_CURRENT_BINARY_DIR}]==])
include([==[${CHECK_OPERATOR_TESTS_SCRIPT}]==])
")
  get_property(several GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(several)
    file(WRITE ${script}.cmake "include([==[${script}-]==]\${CTEST_CONFIGURATION_TYPE}.cmake)\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script}.cmake)
  else()
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script}-${CMAKE_BUILD_TYPE}.cmake)
  endif()
endfunction()

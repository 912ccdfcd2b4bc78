# SPDX-License-Identifier: Apache-2.0
# compile_cpu_kernel(TARGET): how CPU kernels are compiled, and what they share.
function(compile_cpu_kernel target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/abi ${PROJECT_SOURCE_DIR}/kernels)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  optimize_loops(${target})
  share_precompiled_headers(${target} cpu_kernels ${PROJECT_SOURCE_DIR}/kernels/cpu/native.hpp)
endfunction()

# add_kernel(kernels/<op>/<candidate>.cu|.cpp): builds one plugin, <build>/kernels/<op>/<candidate>.so, and installs it.
# Underscores in the file's name become hyphens in the candidate's: cuda_sm90.cu makes cuda-sm90.so.
function(add_kernel path)
  get_filename_component(candidate ${path} NAME_WE)
  get_filename_component(folder ${path} DIRECTORY)
  get_filename_component(op ${folder} NAME)
  set(target kernel_${op}_${candidate})
  add_library(${target} MODULE ${PROJECT_SOURCE_DIR}/${path})
  string(REPLACE "_" "-" name ${candidate})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${name} DEFINE_SYMBOL ""
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/kernels/${op})
  if(path MATCHES "\\.cu$")
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/abi ${PROJECT_SOURCE_DIR}/kernels)
    # Not target_compile_features: CMake 3.25 knows no C++20 feature of nvcc.
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                          CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Shared)
    file(STRINGS ${PROJECT_SOURCE_DIR}/${path} uses_cublas REGEX "#include [<\"](gemm/)?cublas" LIMIT_COUNT 1)
    target_link_libraries(${target} PRIVATE CUDA::cudart)
    if(candidate MATCHES "_sm90$")
      # The "a": wgmma and setmaxnreg exist only on this architecture, so there is no PTX for later ones either.
      set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-real)
    endif()
    if(uses_cublas)
      target_link_libraries(${target} PRIVATE CUDA::cublas CUDA::cublasLt)
    endif()
    if(candidate MATCHES "^nccl")
      target_link_libraries(${target} PRIVATE checkop::nccl)
    endif()
  else()
    compile_cpu_kernel(${target})
  endif()
  target_link_libraries(${target} PRIVATE kernels_cpu)
  install(TARGETS ${target} LIBRARY DESTINATION ${CHECK_OPERATOR_KERNELS}/${op})
  add_dependencies(kernels ${target})
endfunction()

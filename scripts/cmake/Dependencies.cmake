# SPDX-License-Identifier: Apache-2.0
# Every dependency through find_package; a missing one is one sentence with the package that brings it.
function(require_found name found package)
  if(NOT ${found})
    message(FATAL_ERROR "${name} was not found; install it with 'apt-get install ${package}'.")
  endif()
endfunction()

find_package(Threads REQUIRED)
find_package(CLI11 CONFIG QUIET)
require_found("CLI11" CLI11_FOUND libcli11-dev)
find_package(nlohmann_json CONFIG QUIET)
require_found("nlohmann/json" nlohmann_json_FOUND nlohmann-json3-dev)
find_package(fmt CONFIG QUIET)
require_found("fmt" fmt_FOUND libfmt-dev)

# OpenBLAS: FP64 matrix products of the gold only.
set(BLA_VENDOR OpenBLAS)
find_package(BLAS QUIET)
find_path(CHECK_OPERATOR_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas openblas-pthread)
mark_as_advanced(CHECK_OPERATOR_CBLAS_INCLUDE)
if(BLAS_FOUND AND CHECK_OPERATOR_CBLAS_INCLUDE)
  set(openblas_found TRUE)
  add_library(checkop::openblas INTERFACE IMPORTED)
  target_link_libraries(checkop::openblas INTERFACE ${BLAS_LIBRARIES})
  target_include_directories(checkop::openblas SYSTEM INTERFACE ${CHECK_OPERATOR_CBLAS_INCLUDE})
endif()
require_found("OpenBLAS" openblas_found libopenblas-dev)

if(CHECK_OPERATOR_TESTS)
  find_package(GTest CONFIG QUIET)
  require_found("GoogleTest" GTest_FOUND libgtest-dev)
endif()

if(CHECK_OPERATOR_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "nvcc was not found; install the CUDA Toolkit 12.4 or newer (NVIDIA's packages cuda-nvcc, cuda-cudart-dev "
                        "and libcublas-dev), put its bin folder on PATH, or configure with 'cmake --preset cpu'.")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # PTX for cards newer than these, which the driver compiles at first use.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
  endif()
  enable_language(CUDA)
  # CMake 3.25 knows no C++20 flag for nvcc.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  find_package(CUDAToolkit QUIET)
  require_found("The CUDA Toolkit" CUDAToolkit_FOUND "cuda-cudart-dev libcublas-dev' from NVIDIA's repository for 'cuda-toolkit")
endif()

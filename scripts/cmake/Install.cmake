# SPDX-License-Identifier: Apache-2.0
# Contents and layout of an installation. The program finds its files relative to itself, so that the prefix can be
# moved.
include(GNUInstallDirs)
set(CHECK_OPERATOR_SHARE ${CMAKE_INSTALL_DATADIR}/check_operator)
set(CHECK_OPERATOR_MODULES lib/check_operator)  # private to this program, so without an architecture folder
set(CHECK_OPERATOR_KERNELS ${CHECK_OPERATOR_MODULES}/kernels)
set(CHECK_OPERATOR_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/check_operator)
foreach(folder SHARE KERNELS)
  file(RELATIVE_PATH CHECK_OPERATOR_${folder}_FROM_BIN /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CHECK_OPERATOR_${folder}})
endforeach()
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # the CUDA Toolkit's folder, which the loader does not search by default
file(RELATIVE_PATH CHECK_OPERATOR_BIN_FROM_LIB /prefix/${CMAKE_INSTALL_LIBDIR} /prefix/${CMAKE_INSTALL_BINDIR})
file(RELATIVE_PATH CHECK_OPERATOR_PREFIX_FROM_BIN /prefix/${CMAKE_INSTALL_BINDIR} /prefix)

# install_check_operator(): rules for everything but the plugins, which add_kernel() installs.
function(install_check_operator)
  install(TARGETS check_operator RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS check_operator_gtest LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY contracts cases DESTINATION ${CHECK_OPERATOR_SHARE} FILES_MATCHING PATTERN "*.json" PATTERN "*.safetensors")
  install(DIRECTORY src/sdk/init DESTINATION ${CHECK_OPERATOR_SHARE}/sdk)
  install(FILES src/abi/check_operator.h src/abi/check_operator_gtest.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
  if(NOT SKBUILD)  # a wheel has the package beside this tree
    install(DIRECTORY python DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
            PATTERN "__pycache__" EXCLUDE)  # as docs/exec/ looks for it
  endif()
  install(DIRECTORY src/sdk/example/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/gtest)

  include(CMakePackageConfigHelpers)
  set(PACKAGE_PROGRAM ${CMAKE_INSTALL_BINDIR}/check_operator)
  set(PACKAGE_INCLUDE ${CMAKE_INSTALL_INCLUDEDIR})
  set(PACKAGE_LIBRARY ${CMAKE_INSTALL_LIBDIR}/libcheck_operator_gtest.so)
  configure_package_config_file(src/sdk/cmake/check_operatorConfig.cmake.in ${PROJECT_BINARY_DIR}/package/check_operatorConfig.cmake
                                INSTALL_DESTINATION ${CHECK_OPERATOR_PACKAGE} PATH_VARS PACKAGE_PROGRAM PACKAGE_INCLUDE PACKAGE_LIBRARY
                                NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/check_operatorConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/package/check_operatorConfig.cmake
                ${PROJECT_BINARY_DIR}/package/check_operatorConfigVersion.cmake
                src/sdk/cmake/check_operatorFunctions.cmake src/sdk/cmake/check_operatorTests.cmake
          DESTINATION ${CHECK_OPERATOR_PACKAGE})
endfunction()

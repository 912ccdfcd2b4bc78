# SPDX-License-Identifier: Apache-2.0
# cpack: a Debian package and an archive, with the contents of cmake --install.
set(CPACK_GENERATOR TGZ)
find_program(CHECK_OPERATOR_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(CHECK_OPERATOR_SHLIBDEPS)
if(CHECK_OPERATOR_SHLIBDEPS)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_NAME check-operator)  # Debian allows no underscores
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "check_operator maintainers <check-operator@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tells whether a GPU operator can be trusted")
set(CPACK_PACKAGE_DESCRIPTION "It runs a kernel forward and backward on deterministic inputs, judges every
element against an FP64 gold under a tolerance contract, checks its memory, its
determinism and its batch invariance bit for bit, and gives a verdict that a CI
gate can act on.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, g++")
include(CPack)

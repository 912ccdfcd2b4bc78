# SPDX-License-Identifier: Apache-2.0
# Run by ctest before the tests: asks the program which checks check_operator_add_checks() selects, and registers them.
#   in: CHECKS_NAME, CHECKS_COMMAND (the program and its flags), CHECKS_DEVICE, CHECKS_EACH_CASE, CHECKS_FOLDER
execute_process(COMMAND ${CHECKS_COMMAND} --list WORKING_DIRECTORY ${CHECKS_FOLDER} RESULT_VARIABLE checks_result
                OUTPUT_VARIABLE checks_listed ERROR_QUIET)
set(checks_groups)
if(checks_result EQUAL 0)
  # A line looks like "rms_norm/forward/mine/rms_norm-fp32-2x4x31  1.5 KiB".
  string(REGEX MATCHALL "[^\n]+" checks_listed "${checks_listed}")
  foreach(checks_line IN LISTS checks_listed)
    string(REGEX REPLACE "  .*" "" checks_case "${checks_line}")
    if(CHECKS_EACH_CASE)
      list(APPEND checks_groups "${checks_case}")
    elseif(checks_case MATCHES "^(.*/)([^/-]+)-([^/-]+)-[^/]*$")
      list(APPEND checks_groups "${CMAKE_MATCH_1}${CMAKE_MATCH_2}-${CMAKE_MATCH_3}-*")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES checks_groups)
endif()

set(checks_tests)
foreach(checks_filter IN LISTS checks_groups)
  string(REGEX REPLACE "/[^/]+-([^/-]+)-[*]$" "/\\1" checks_test "${CHECKS_NAME}/${checks_filter}")
  add_test("${checks_test}" ${CHECKS_COMMAND} --filter "${checks_filter}")
  list(APPEND checks_tests "${checks_test}")
endforeach()
if(NOT checks_tests)
  add_test("${CHECKS_NAME}" ${CHECKS_COMMAND})  # fails, and says why
  set(checks_tests "${CHECKS_NAME}")
endif()
foreach(checks_test IN LISTS checks_tests)
  set_tests_properties("${checks_test}" PROPERTIES LABELS check_operator WORKING_DIRECTORY "${CHECKS_FOLDER}")
  if(CHECKS_DEVICE MATCHES "^cuda")
    set_tests_properties("${checks_test}" PROPERTIES RESOURCE_LOCK "check_operator_${CHECKS_DEVICE}")
  endif()
endforeach()

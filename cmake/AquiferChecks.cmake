# The checks on the source text that run with the tests. Each proves by a self-test that it can fail.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  aquifer_note_feature("source checks: off (python3 not found: apt-get install python3)")
  return()
endif()
aquifer_note_feature("source checks: on")

foreach(check check-layers check-determinism check-links check-words)
  add_test(NAME ${check}
    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/${check}")
endforeach()
if(TARGET aquifer_c)
  add_test(NAME check-exports COMMAND
    Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check-exports" "$<TARGET_FILE:aquifer_c>")
  set_tests_properties(check-exports PROPERTIES LABELS "checks" TIMEOUT 60)
  # Into a program that runs already, which has little room left for a thread's own variables. A
  # sanitizer's runtime cannot come that late.
  if(NOT AQUIFER_SANITIZE)
    add_test(NAME load-library COMMAND Python3::Interpreter -c
      "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).aquifer_abi_version() == 2"
      "$<TARGET_FILE:aquifer_c>")
    set_tests_properties(load-library PROPERTIES LABELS "checks" TIMEOUT 60)
  endif()
endif()
foreach(tool check-layers check-determinism check-links check-words check-exports count-tests count-lines)
  add_test(NAME ${tool}-self-test
    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/${tool}" --self-test)
endforeach()
set_tests_properties(
  check-layers check-determinism check-links check-words
  check-layers-self-test check-determinism-self-test check-links-self-test check-words-self-test check-exports-self-test
  count-tests-self-test count-lines-self-test
  PROPERTIES LABELS "checks" TIMEOUT 60)

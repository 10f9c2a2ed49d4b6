# Warnings, sanitizers, ccache and the linker, for every target below this directory.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)

add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>")
# GCC 13 sees an overrun inside fmt 9's formatting of floating-point numbers that is not there.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow>")
endif()
if(AQUIFER_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>")  # Reads AQ_GUARDED_BY.
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>")

# A sanitizer that finds something ends the test at once: a test that goes on after an error can still pass.
set(AQUIFER_TEST_ENVIRONMENT "")
if(AQUIFER_SANITIZE STREQUAL "address")
  set(_sanitize -fsanitize=address -fno-sanitize-recover=all)
  if(AQUIFER_UNDEFINED)
    list(APPEND _sanitize -fsanitize=undefined)
  endif()
elseif(AQUIFER_SANITIZE STREQUAL "thread")
  set(_sanitize -fsanitize=thread)
elseif(AQUIFER_SANITIZE STREQUAL "fuzzer")
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "AQUIFER_SANITIZE=fuzzer needs Clang. Next step: cmake --preset fuzz")
  endif()
  set(_sanitize -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
elseif(AQUIFER_SANITIZE)
  message(FATAL_ERROR "AQUIFER_SANITIZE is '${AQUIFER_SANITIZE}'; it may be address, thread or fuzzer")
endif()
if(AQUIFER_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${_sanitize}>")
  add_link_options(${_sanitize})
  # abort_on_error: a signal, unlike a plain exit, lets the fuzz replay say which input it was on.
  # report_signal_unsafe: GCC 13's runtime believes a thread to be in a signal handler for ever once
  # it left one by a jump, as io/bus_guard does, and then reports its next allocation.
  list(APPEND AQUIFER_TEST_ENVIRONMENT
    "ASAN_OPTIONS=halt_on_error=1:abort_on_error=1:detect_leaks=1:detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:report_signal_unsafe=0")
  aquifer_note_feature("sanitizer: ${AQUIFER_SANITIZE}")
endif()
# GCC sees uninitialised variables in instrumented code of the standard library that are not there.
if(AQUIFER_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>")
endif()
# GCC's thread sanitizer refuses std::atomic_thread_fence with this warning; -Werror would make a
# correct program fail to build.
if(AQUIFER_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>")
endif()

find_program(AQUIFER_CCACHE ccache)
mark_as_advanced(AQUIFER_CCACHE)
if(AQUIFER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${AQUIFER_CCACHE}")
  aquifer_note_feature("ccache: on")
elseif(NOT AQUIFER_CCACHE)
  aquifer_note_feature("ccache: off (not found: apt-get install ccache)")
endif()

check_linker_flag(CXX -fuse-ld=mold AQUIFER_LINKER_IS_MOLD)
if(AQUIFER_LINKER_IS_MOLD)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=mold>)
  aquifer_note_feature("linker: mold")
else()
  check_linker_flag(CXX -fuse-ld=lld AQUIFER_LINKER_IS_LLD)
  if(AQUIFER_LINKER_IS_LLD)
    add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
    aquifer_note_feature("linker: lld")
  else()
    aquifer_note_feature("linker: the compiler's own (no mold, no lld: links are slower)")
  endif()
endif()

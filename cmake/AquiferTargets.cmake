# The four functions that the CMakeLists.txt below src/ are written in. DEPS are our own libraries:
# that of src/tier/nvme is called tier_nvme; LINK is for what is not ours. tools/check-layers reads DEPS as text, so write them
# out: no variables.

# aquifer_library(tier_nvme  SRCS nvme_tier.cc  DEPS tier io_disk  [LINK OpenSSL::Crypto])
# makes aquifer_tier_nvme and its alias aquifer::tier_nvme. Without SRCS it is header-only.
function(aquifer_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS;LINK")
  aquifer_reject_leftovers("aquifer_library(${name})" "${arg_UNPARSED_ARGUMENTS}")
  set(target aquifer_${name})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(aquifer::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope}
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    $<INSTALL_INTERFACE:include>)
  aquifer_link(${target} ${scope} "${arg_DEPS}" "${arg_LINK}")
  set_property(GLOBAL APPEND PROPERTY AQUIFER_LIBRARIES ${name})
  set_property(GLOBAL PROPERTY AQUIFER_DEPS_OF_${name} "${arg_DEPS}")
endfunction()

# aquifer_test(dram_pool_test  DEPS tier testing  [SRCS other_name.cc] [LINK fmt::fmt]
#              [LABELS slow] [TIMEOUT 120] [ENV NAME=value])
# makes a GoogleTest program with a main of its own, and one ctest entry. It also carries the names
# of its folders as labels. LABELS release-only keeps it out of the sanitizer builds; threads says
# that more than one thread runs in it, which is what the thread sanitizer is for.
function(aquifer_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SRCS;DEPS;LINK;LABELS;ENV")
  aquifer_reject_leftovers("aquifer_test(${name})" "${arg_UNPARSED_ARGUMENTS}")
  if(NOT AQUIFER_HAS_TESTS OR (AQUIFER_SANITIZE AND "release-only" IN_LIST arg_LABELS))
    return()
  endif()
  if(NOT arg_SRCS)
    set(arg_SRCS ${name}.cc)
  endif()
  add_executable(${name} ${arg_SRCS})
  aquifer_link(${name} PRIVATE "${arg_DEPS}" "${arg_LINK};GTest::gmock_main;GTest::gmock;GTest::gtest")
  if(AQUIFER_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)  # Half the time to build; the library keeps its -O1.
  endif()
  # One report from each program; tools/count-tests adds up the cases in them and misses none.
  list(APPEND arg_ENV "GTEST_OUTPUT=json:${PROJECT_BINARY_DIR}/results/${name}.json")
  file(APPEND "${PROJECT_BINARY_DIR}/gtest-programs.txt" "${name}\n")
  aquifer_register_test(${name} "${arg_LABELS}" "${arg_TIMEOUT}" "${arg_ENV}")
endfunction()

# aquifer_bench(dram_pool_bench  DEPS tier  [SRCS ...] [LINK ...]) makes a Google Benchmark program.
function(aquifer_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS;LINK")
  aquifer_reject_leftovers("aquifer_bench(${name})" "${arg_UNPARSED_ARGUMENTS}")
  if(NOT AQUIFER_HAS_BENCHMARKS)
    return()
  endif()
  if(NOT arg_SRCS)
    set(arg_SRCS ${name}.cc)
  endif()
  add_executable(${name} ${arg_SRCS})
  aquifer_link(${name} PRIVATE "${arg_DEPS}" "${arg_LINK};benchmark::benchmark_main;benchmark::benchmark")
endfunction()

# aquifer_fuzz(record_fuzz  DEPS block  [SRCS ...] [LINK ...] [RUNS 4000] [TIMEOUT 120]) takes a
# source that defines LLVMFuzzerTestOneInput. The fuzz preset makes a libFuzzer program of it. All
# other builds make a test that replays fuzz/<name>/ and RUNS inputs derived from it by a fixed seed.
function(aquifer_fuzz name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "RUNS;TIMEOUT" "SRCS;DEPS;LINK")
  aquifer_reject_leftovers("aquifer_fuzz(${name})" "${arg_UNPARSED_ARGUMENTS}")
  if(NOT arg_SRCS)
    set(arg_SRCS ${name}.cc)
  endif()
  if(NOT arg_RUNS)
    set(arg_RUNS 4000)
  endif()
  if(AQUIFER_SANITIZE STREQUAL "fuzzer")
    add_executable(${name} ${arg_SRCS})
    aquifer_link(${name} PRIVATE "${arg_DEPS}" "${arg_LINK}")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
    add_dependencies(fuzz_targets ${name})
    file(APPEND "${PROJECT_BINARY_DIR}/fuzz-targets.txt" "${name}\n")
  elseif(NOT AQUIFER_TESTS STREQUAL "OFF")
    add_executable(${name} ${arg_SRCS} "${PROJECT_SOURCE_DIR}/fuzz/replay_main.cc")
    aquifer_link(${name} PRIVATE "${arg_DEPS}" "${arg_LINK}")
    aquifer_register_test(${name} fuzz "${arg_TIMEOUT}" ""
      "${PROJECT_SOURCE_DIR}/fuzz/${name}" ${arg_RUNS})
  endif()
endfunction()

# The rest serves the four above.

file(WRITE "${PROJECT_BINARY_DIR}/gtest-programs.txt" "")
# `ninja fuzz_targets` builds the programs that fuzz-targets.txt lists.
if(AQUIFER_SANITIZE STREQUAL "fuzzer")
  add_custom_target(fuzz_targets)
  file(WRITE "${PROJECT_BINARY_DIR}/fuzz-targets.txt" "")
endif()

function(aquifer_link target scope deps link)
  foreach(dep IN LISTS deps)
    # The :: makes CMake refuse a name that is no target, instead of passing -l<name> to the linker.
    target_link_libraries(${target} ${scope} aquifer::${dep})
  endforeach()
  target_link_libraries(${target} ${scope} ${link})
  if(scope STREQUAL "PRIVATE")  # A program, which may have no DEPS to take these from.
    target_include_directories(${target} PRIVATE
      "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  endif()
endfunction()

function(aquifer_register_test name labels timeout environment)
  if(NOT timeout)
    set(timeout 120)
  endif()
  if(AQUIFER_SANITIZE)
    math(EXPR timeout "${timeout} * 4")  # The thread sanitizer alone costs up to tenfold.
  endif()
  # Labels: src/tier/nvme gives tier and tier_nvme, and tests/ gives tests.
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "^src/" "" folder "${folder}")
  string(REGEX REPLACE "/.*" "" top "${folder}")
  string(REPLACE "/" "_" folder "${folder}")
  set(folders ${folder} ${top})
  list(REMOVE_DUPLICATES folders)
  add_test(NAME ${name} COMMAND ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES
    LABELS "${folders};${labels}"
    TIMEOUT ${timeout}
    ENVIRONMENT "${environment};${AQUIFER_TEST_ENVIRONMENT}")
  # `ninja base_tests` builds what `ctest -L '^base$'` runs.
  foreach(label IN LISTS folders labels)
    if(NOT TARGET ${label}_tests)
      add_custom_target(${label}_tests)
    endif()
    add_dependencies(${label}_tests ${name})
  endforeach()
endfunction()

function(aquifer_reject_leftovers call leftovers)
  if(leftovers)
    message(FATAL_ERROR "${call} does not know what to do with: ${leftovers}")
  endif()
endfunction()

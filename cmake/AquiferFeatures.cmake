# Finds every library we use, so that whatever is missing is said here, once, and not deep in a
# build. Sets AQUIFER_HAS_<FEATURE> to ON or OFF; src/ looks at those and at nothing else.

set_property(GLOBAL PROPERTY AQUIFER_FEATURE_LINES "")

# aquifer_require(OpenSSL libssl-dev ARGS COMPONENTS Crypto): stops the configure run when the
# library is not there, and says which Debian package has it.
macro(aquifer_require name package)
  cmake_parse_arguments(_require "" "" "ARGS" ${ARGN})
  find_package(${name} QUIET ${_require_ARGS})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "Aquifer needs ${name}, which is not installed.\n"
      "Next step: run tools/install-deps, or: apt-get install ${package}")
  endif()
endmacro()

# aquifer_feature(IO_URING "io_uring" MISSING "liburing.h not found: apt-get install liburing-dev")
# settles AQUIFER_HAS_IO_URING from the option AQUIFER_IO_URING. An empty MISSING means all is there.
# AQUIFER_LABEL_OF_IO_URING and AQUIFER_WHY_NO_IO_URING (empty when it is on) are what `aquifer doctor` says.
macro(aquifer_feature name label)
  cmake_parse_arguments(_feature "" "" "MISSING" ${ARGN})
  if("${AQUIFER_${name}}" STREQUAL "AUTO")
    set(_wanted ON)
  else()
    set(_wanted "${AQUIFER_${name}}")
  endif()
  set(AQUIFER_LABEL_OF_${name} "${label}")
  set(AQUIFER_WHY_NO_${name} "")
  if(NOT _wanted)
    set(AQUIFER_HAS_${name} OFF)
    set(AQUIFER_WHY_NO_${name} "AQUIFER_${name}=OFF")
    aquifer_note_feature("${label}: off (AQUIFER_${name}=OFF)")
  elseif(_feature_MISSING)
    if(NOT "${AQUIFER_${name}}" STREQUAL "AUTO")
      message(FATAL_ERROR "AQUIFER_${name} is ON, but ${_feature_MISSING}")
    endif()
    set(AQUIFER_HAS_${name} OFF)
    set(AQUIFER_WHY_NO_${name} "${_feature_MISSING}")
    aquifer_note_feature("${label}: off (${_feature_MISSING})")
  else()
    set(AQUIFER_HAS_${name} ON)
    aquifer_note_feature("${label}: on")
  endif()
endmacro()

function(aquifer_note_feature line)
  set_property(GLOBAL APPEND PROPERTY AQUIFER_FEATURE_LINES "${line}")
endfunction()

function(aquifer_print_features)
  get_property(lines GLOBAL PROPERTY AQUIFER_FEATURE_LINES)
  message(STATUS "Aquifer ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  foreach(line IN LISTS lines)
    message(STATUS "  ${line}")
  endforeach()
endfunction()

# A wheel is loaded into processes that have libraries of these names of their own.
if(AQUIFER_WHEEL)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(_library_suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  add_link_options(-static-libstdc++ -static-libgcc)
endif()

aquifer_require(Threads libc6-dev)
aquifer_require(OpenSSL libssl-dev ARGS COMPONENTS Crypto SSL)
if(AQUIFER_WHEEL)  # Debian has no static one.
  find_path(AQUIFER_FMT_INCLUDE_DIR fmt/format.h REQUIRED)
  mark_as_advanced(AQUIFER_FMT_INCLUDE_DIR)
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
  target_include_directories(fmt::fmt SYSTEM INTERFACE "${AQUIFER_FMT_INCLUDE_DIR}")
else()
  aquifer_require(fmt libfmt-dev)
endif()

find_package(Liburing QUIET)
set(_missing "")
if(NOT Liburing_FOUND)
  set(_missing "liburing not found: apt-get install liburing-dev")
endif()
aquifer_feature(IO_URING "io_uring" MISSING ${_missing})

set(_missing "")
find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  set(_missing "zlib not found: apt-get install zlib1g-dev")
endif()
aquifer_feature(ZLIB "gzip traces" MISSING ${_missing})
if(AQUIFER_WHEEL)
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${_library_suffixes})
endif()

# Not in a wheel: it would bring a dozen libraries along, and an engine's process speaks to no store.
set(_missing "")
find_package(CURL QUIET)
if(AQUIFER_WHEEL)
  set(_missing "a wheel speaks to no store")
elseif(NOT CURL_FOUND OR CURL_VERSION_STRING VERSION_LESS 7.85)
  set(_missing "libcurl 7.85 not found: apt-get install libcurl4-openssl-dev")
endif()
aquifer_feature(S3 "S3 stores" MISSING ${_missing})

# Only the compiler and its headers: kernels are compiled to an image that the program carries, and the
# driver's functions are looked up at run time.
set(_missing "")
if(AQUIFER_CUDA)  # AUTO or ON.
  # CUDA's own installer leaves nvcc out of PATH.
  find_program(AQUIFER_NVCC nvcc
    HINTS "${PROJECT_SOURCE_DIR}/build/tools/cuda/toolkit" ENV CUDA_HOME PATH_SUFFIXES bin
    PATHS /usr/local/cuda/bin)
  cmake_path(GET AQUIFER_NVCC PARENT_PATH _nvcc_folder)
  find_path(AQUIFER_CUDA_INCLUDE_DIR cuda.h
    HINTS "${_nvcc_folder}/../include" "${_nvcc_folder}/../targets/x86_64-linux/include")
  mark_as_advanced(AQUIFER_NVCC AQUIFER_CUDA_INCLUDE_DIR)
  set(_cuda_version "")
  if(AQUIFER_NVCC AND AQUIFER_CUDA_INCLUDE_DIR)
    file(STRINGS "${AQUIFER_CUDA_INCLUDE_DIR}/cuda.h" _cuda_version REGEX "#define CUDA_VERSION ")
    string(REGEX REPLACE "[^0-9]" "" _cuda_version "${_cuda_version}")
  endif()
  if(NOT _cuda_version)
    set(_missing "no CUDA compiler found: run tools/install-nvcc")
  elseif(_cuda_version LESS 13000)
    set(_missing "the CUDA compiler is older than 13.0: run tools/install-nvcc")
  endif()
endif()
aquifer_feature(CUDA "CUDA" MISSING ${_missing})

# pip shows nothing of a build that succeeds, so nobody would read a warning.
set(AQUIFER_GPU_DEVICE /dev/nvidiactl CACHE FILEPATH "It exists where the host has an NVIDIA GPU")
mark_as_advanced(AQUIFER_GPU_DEVICE)
if(AQUIFER_WHEEL AND AQUIFER_CUDA STREQUAL "AUTO" AND NOT AQUIFER_HAS_CUDA
   AND EXISTS "${AQUIFER_GPU_DEVICE}")
  message(FATAL_ERROR "This host has an NVIDIA GPU, and the wheel would have no GPU code: ${_missing}\n"
    "Next step: run tools/install-nvcc (it needs python3-venv, and downloads 344 MB into build/tools), "
    "or install CUDA 13.0 or newer; then: pip install .\n"
    "For a wheel without GPU code: pip install . -C cmake.define.AQUIFER_CUDA=OFF")
endif()

set(_missing "")
find_package(CLI11 CONFIG QUIET)
find_package(nlohmann_json CONFIG QUIET)
if(NOT CLI11_FOUND)
  set(_missing "CLI11 not found: apt-get install libcli11-dev")
elseif(NOT nlohmann_json_FOUND)
  set(_missing "nlohmann_json not found: apt-get install nlohmann-json3-dev")
endif()
aquifer_feature(PROGRAM "aquifer program" MISSING ${_missing})

# Header only, and the only library that nothing but the node's settings need.
set(_missing "")
find_path(AQUIFER_TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h)
mark_as_advanced(AQUIFER_TOMLPLUSPLUS_INCLUDE_DIR)
if(NOT AQUIFER_HAS_PROGRAM)
  set(_missing "it is part of the aquifer program, which is off")
elseif(NOT AQUIFER_TOMLPLUSPLUS_INCLUDE_DIR)
  set(_missing "toml++ not found: apt-get install libtomlplusplus-dev")
endif()
aquifer_feature(NODE "node (aquifer serve)" MISSING ${_missing})

# Header only, too: Beast and Asio.
set(_missing "")
find_path(AQUIFER_BOOST_INCLUDE_DIR boost/beast.hpp)
mark_as_advanced(AQUIFER_BOOST_INCLUDE_DIR)
if(NOT AQUIFER_HAS_NODE)
  set(_missing "it is part of the node, which is off")
elseif(NOT AQUIFER_BOOST_INCLUDE_DIR)
  set(_missing "Boost.Beast not found: apt-get install libboost-dev")
endif()
aquifer_feature(HTTP "HTTP (metrics, aquifer ctl and top)" MISSING ${_missing})

set(_missing "")
find_package(GTest CONFIG QUIET)
if(NOT TARGET GTest::gmock_main)
  set(_missing "GoogleTest not found: apt-get install libgtest-dev libgmock-dev")
endif()
aquifer_feature(TESTS "tests" MISSING ${_missing})

set(_missing "")
find_package(benchmark CONFIG QUIET)
if(NOT benchmark_FOUND)
  set(_missing "Google Benchmark not found: apt-get install libbenchmark-dev")
endif()
aquifer_feature(BENCHMARKS "benchmarks" MISSING ${_missing})

# aquifer_bench_peer(NAME text header library package): a library that `aquifer bench` measures beside ours.
function(aquifer_bench_peer name text header library package)
  set(missing "")
  if(AQUIFER_WHEEL)
    set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  endif()
  find_path(AQUIFER_${name}_INCLUDE_DIR ${header})
  find_library(AQUIFER_${name}_LIBRARY ${library})
  mark_as_advanced(AQUIFER_${name}_INCLUDE_DIR AQUIFER_${name}_LIBRARY)
  if(NOT AQUIFER_${name}_INCLUDE_DIR OR NOT AQUIFER_${name}_LIBRARY)
    set(missing "${text} not found: apt-get install ${package}")
  endif()
  aquifer_feature(${name} "${text} in benchmarks" MISSING ${missing})
  set(AQUIFER_HAS_${name} ${AQUIFER_HAS_${name}} PARENT_SCOPE)
endfunction()

aquifer_bench_peer(XXHASH xxHash xxhash.h xxhash libxxhash-dev)
aquifer_bench_peer(ZSTD zstd zstd.h zstd libzstd-dev)
aquifer_bench_peer(LZ4 LZ4 lz4.h lz4 liblz4-dev)
aquifer_bench_peer(HIREDIS hiredis hiredis/hiredis.h hiredis libhiredis-dev)

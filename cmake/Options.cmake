# Packages; warnings, sanitizers, compiler cache (of our own code alone).
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")  # asserts stay on; -O3 is set where it was measured to help
set(MEGATRON_COLD "$<$<CONFIG:Release>:-Og>")  # megatron_library() says for what; -O1 compiles for half as long again
if(MEGATRON_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-Og -g1")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ looks for garbage first when it has a gigabyte: an eighth less time to compile, for a fifth more memory.
  string(APPEND CMAKE_CXX_FLAGS " --param=ggc-min-heapsize=1000000")
endif()

# Assertions name files as the checkout does, wherever it is: the compiler cache knows them again in another.
string(REPLACE " " "\\ " checkout "${PROJECT_SOURCE_DIR}")
string(APPEND CMAKE_CXX_FLAGS " -fmacro-prefix-map=${checkout}/=")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE=${CCACHE} CHECKOUT=${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cmake/ccache.sh)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

find_program(PYTHON3 python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(PYTHON3 python3 REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)
# libtorch brings its own libgomp: our kernels must run in the same thread pool.
if(EXISTS ${TORCH_DIR_FOUND}/lib/libgomp.so.1)
  set(OpenMP_gomp_LIBRARY ${TORCH_DIR_FOUND}/lib/libgomp.so.1 CACHE FILEPATH "OpenMP runtime" FORCE)
endif()
find_package(OpenMP REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(fmt REQUIRED fmt)  # its headers alone (base/text/format.h)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(lzma REQUIRED IMPORTED_TARGET liblzma)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)

# Warnings are of our own code, options what also those need who link a folder.
add_library(megatron_warnings INTERFACE)
target_compile_options(megatron_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror>)
if(CMAKE_UNITY_BUILD)  # both would be said of names that another file keeps to itself
  target_compile_options(megatron_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow -Wno-subobject-linkage>)
endif()
add_library(megatron_options INTERFACE)
target_include_directories(megatron_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(NOT fmt_VERSION MATCHES "^9\\.")  # of others base/text/format.cpp does not know what is to be compiled once
  target_compile_definitions(megatron_options INTERFACE FMT_HEADER_ONLY)
endif()
target_include_directories(megatron_options SYSTEM BEFORE INTERFACE ${PROJECT_SOURCE_DIR}/cmake/templates)
target_link_libraries(megatron_options INTERFACE Threads::Threads)
if(MEGATRON_SANITIZE)
  target_compile_options(megatron_options INTERFACE -fsanitize=${MEGATRON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # vptr knows no types of libtorch; what null and object-size would say, an access itself does. They are a third of
    # the time to compile, as undefined behaviour of the tests themselves is.
    "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-fno-sanitize=undefined>"
    "$<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>>:-fno-sanitize=vptr,null,object-size>"
    # g++ finds bounds and lifetimes wrongly exceeded in code it has instrumented; the plain build judges them.
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-error=array-bounds;-Wno-error=maybe-uninitialized;-Wno-error=stringop-overflow>")
  target_link_options(megatron_options INTERFACE -fsanitize=${MEGATRON_SANITIZE})
endif()

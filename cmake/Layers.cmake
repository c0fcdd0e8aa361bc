# One static library per folder of src/megatron, one test program per folder of tests/.

# megatron_unity(TARGET): in a unity build (CMAKE_UNITY_BUILD, which the presets set: half of the work to build everything
# is headers and templates that many files share) the target's sources are compiled in the groups that unity_groups.py
# finds. A name that is new in two files of a group stops the compiler: configure again, which groups them again.
function(megatron_unity target)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "/tests/testing/")  # a property of a file holds for all targets that it belongs to
  execute_process(COMMAND ${PYTHON3} ${PROJECT_SOURCE_DIR}/cmake/unity_groups.py ${MEGATRON_UNITY_LINES} ${sources}
    OUTPUT_VARIABLE groups COMMAND_ERROR_IS_FATAL ANY)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  string(REGEX MATCHALL "[^\n]+" groups "${groups}")
  foreach(line ${groups})  # NUMBER FILE
    string(REGEX MATCH "^([0-9]+) (.*)" line "${line}")
    set_source_files_properties(${CMAKE_MATCH_2} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
  endforeach()
endfunction()

# megatron_library(FOLDER [PURE] [COLD] [DEPS folder…] [LIBS target…] [FLAGS flag…] [HOT file…])
# PURE folders must not see torch headers (scripts/check_layers.py proves it over the #include lines). COLD folders
# decide and arrange, and nothing waits for it: they are compiled for short compilations (half of the time of -O2), but
# for their HOT files.
function(megatron_library folder)
  cmake_parse_arguments(ARG "PURE;COLD" "" "DEPS;LIBS;FLAGS;HOT" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY MEGATRON_FOLDERS ${folder})
  if(MEGATRON_SANITIZE AND MEGATRON_SANITIZED AND NOT folder MATCHES "^(${MEGATRON_SANITIZED})$")
    # Taken as the preset release has built it: what is sanitized in CI is a part, and kernels compile for minutes.
    add_library(megatron_${folder} STATIC IMPORTED)
    set_target_properties(megatron_${folder} PROPERTIES IMPORTED_LOCATION ${PROJECT_SOURCE_DIR}/build/libmegatron_${folder}.a)
    list(TRANSFORM ARG_DEPS PREPEND megatron_)
    target_link_libraries(megatron_${folder} INTERFACE megatron_options ${ARG_LIBS} ${ARG_DEPS})
    if(NOT ARG_PURE)
      target_link_libraries(megatron_${folder} INTERFACE torch_cpu)
    endif()
    return()
  endif()
  # The kinds of models have a file for each folder that must know them.
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/megatron/${folder}/*.cpp
    ${PROJECT_SOURCE_DIR}/src/megatron/models/*/${folder}.cpp
       ${PROJECT_SOURCE_DIR}/src/megatron/models/*/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/cuda/|nccl_")
  if(NOT sources)
    add_library(megatron_${folder} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(megatron_${folder} STATIC ${sources})
    set(scope PUBLIC)
  endif()
  if(sources)
    if(ARG_HOT AND NOT MEGATRON_SANITIZE)  # a file with options of its own is in no group
      list(TRANSFORM ARG_HOT PREPEND ${PROJECT_SOURCE_DIR}/src/megatron/)
      set_source_files_properties(${ARG_HOT} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>"
        SKIP_PRECOMPILE_HEADERS ON)
    endif()
    megatron_unity(megatron_${folder})
    target_compile_options(megatron_${folder} PRIVATE ${ARG_FLAGS})
    if(ARG_COLD)
      target_compile_options(megatron_${folder} PRIVATE ${MEGATRON_COLD})
    endif()
  endif()
  if(sources)
    target_link_libraries(megatron_${folder} PRIVATE megatron_warnings)
  endif()
  target_link_libraries(megatron_${folder} ${scope} megatron_options ${ARG_LIBS})
  foreach(dep ${ARG_DEPS})
    if(TARGET megatron_${dep})
      target_link_libraries(megatron_${folder} ${scope} megatron_${dep})
    else()
      target_link_libraries(megatron_${folder} ${scope} ${dep})
    endif()
  endforeach()
  if(NOT ARG_PURE)
    target_link_libraries(megatron_${folder} ${scope} torch_cpu)
  endif()
  # comm is compiled without OpenMP. In kernels g++ 12 would take the header's -ffp-contract for the file's own wherever
  # a pragma names an instruction set: other bits.
  if(sources AND NOT folder MATCHES "^(comm|kernels)$")
    set(headers "")
    if(ARG_COLD)
      string(APPEND headers COLD_)
    endif()
    if(ARG_PURE)
      string(APPEND headers PURE_)
    endif()
    megatron_precompile(megatron_${folder} ${headers}LIBRARY)
  endif()
endfunction()

# megatron_precompile(TARGET [[COLD_][PURE_]LIBRARY|TORCH|PROGRAM|TORCH_PROGRAM]): what a file includes from elsewhere is
# half of the time that it takes to compile: such headers are compiled once. LIBRARY: for a library, libtorch's too
# unless it is pure; TORCH: those and GoogleTest's, for tests; PROGRAM: what the jobs of the command line include, TORCH_PROGRAM: those that
# compute; none: GoogleTest's alone. They have a small target of their own, but for programs: a precompiled header
# belongs to one, and whoever uses it must be compiled with OpenMP as it is, or without as it is, both as libraries or
# as programs, and as cold as it is: g++ optimizes by the options that the header was compiled with. Tests and programs
# are cold: they wait for the libraries.
function(megatron_precompile target)
  set(owner tests_headers)
  set(headers <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp> <filesystem> <functional> <map> <span> <string> <thread> <vector>)
  set(libraries megatron_options)
  if(ARGV1 STREQUAL TORCH)
    set(owner tests_torch_headers)
    list(APPEND headers <ATen/core/Tensor.h> <ATen/TensorOperators.h> <ATen/ops/empty.h> <ATen/ops/zeros.h>
      <ATen/ops/full.h> <ATen/ops/equal.h> <ATen/ops/tensor.h>)
    set(libraries megatron_kernels)
  endif()
  if(ARGV1 MATCHES "LIBRARY")
    string(TOLOWER ${ARGV1}_headers owner)
    set(headers <nlohmann/json.hpp> <algorithm> <array> <charconv> <filesystem> <fstream> <functional> <map> <memory>
      <optional> <set> <span> <sstream> <string> <utility> <variant> <vector>)
    set(libraries megatron_options nlohmann_json::nlohmann_json)
    if(NOT ARGV1 MATCHES "PURE")
      list(APPEND headers <ATen/core/Tensor.h> <ATen/TensorOperators.h> <ATen/ops/empty.h>)
      list(APPEND libraries torch_cpu OpenMP::OpenMP_CXX)
    endif()
  endif()
  if(ARGV1 MATCHES "PROGRAM")
    set(owner ${target})  # the only one
    set(headers <nlohmann/json.hpp> <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <span>
      <string> <utility> <vector> <megatron/config/options.h> <megatron/plan/rules.h> <megatron/text/tokenizer.h>
      <megatron/recipe/resolve.h>)
    if(ARGV1 STREQUAL TORCH_PROGRAM)
      list(APPEND headers <ATen/core/Tensor.h> <megatron/run/trained_model.h>)
    endif()
    target_precompile_headers(${target} PRIVATE ${headers})
  endif()
  if(NOT TARGET ${owner} AND owner MATCHES "library_headers")
    add_library(${owner} STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/headers.cpp)
    target_link_libraries(${owner} PRIVATE megatron_warnings ${libraries})
    if(owner MATCHES "^cold_")
      target_compile_options(${owner} PRIVATE ${MEGATRON_COLD})
    endif()
    target_precompile_headers(${owner} PRIVATE ${headers})
  elseif(NOT TARGET ${owner})
    add_executable(${owner} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/headers.cpp)
    target_link_libraries(${owner} PRIVATE megatron_warnings ${libraries} GTest::gtest_main GTest::gmock)
    target_compile_options(${owner} PRIVATE ${MEGATRON_COLD})
    target_precompile_headers(${owner} PRIVATE ${headers})
  endif()
  if(NOT owner MATCHES "library_headers")
    target_compile_options(${target} PRIVATE ${MEGATRON_COLD})
  endif()
  if(NOT owner STREQUAL target)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # The first for ccache. In strings that are added up, g++ 12 sees bounds exceeded where none are, and says so where
    # the strings' header is a precompiled one.
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-restrict
      -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endfunction()

# test_folders: where tests find their files; what they compare with is unpacked into .cache/golden.
function(megatron_test_folders)
  if(TARGET test_folders)
    return()
  endif()
  set(archive ${PROJECT_SOURCE_DIR}/tests/golden/packed.tar.xz)
  set(unpacked ${PROJECT_SOURCE_DIR}/.cache/golden)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
  file(SHA256 ${archive} hash)
  if(NOT EXISTS ${unpacked}/${hash})
    execute_process(COMMAND ${PYTHON3} ${PROJECT_SOURCE_DIR}/tests/golden/unpack.py ${unpacked} COMMAND_ERROR_IS_FATAL ANY)
    file(TOUCH ${unpacked}/${hash})
  endif()
  add_library(test_folders OBJECT ${PROJECT_SOURCE_DIR}/tests/testing/folders.cpp)
  target_include_directories(test_folders PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(test_folders PRIVATE megatron_warnings megatron_options)
  target_compile_definitions(test_folders PRIVATE
    MEGATRON_TEST_FOLDER="${PROJECT_SOURCE_DIR}/tests" MEGATRON_UNPACKED_FOLDER="${unpacked}")
endfunction()

# megatron_test(FOLDER LABEL [PARTS n] [TIMEOUT s] [DEPS folder…]): tests/FOLDER/*.cpp as one program FOLDER_test. ctest
# runs it in n parts with the label (to load libtorch for each test would cost more than most tests), those of many
# parts before others, so that no core is left with a long one at the end; tests for a GPU by themselves. One test:
# build/FOLDER_test --gtest_filter='*Name*'.
function(megatron_test folder label)
  cmake_parse_arguments(ARG "" "PARTS;TIMEOUT" "DEPS" ${ARGN})
  if(NOT ARG_PARTS)
    set(ARG_PARTS 1)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(MEGATRON_SANITIZE)  # code takes several times as long
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  if(NOT sources OR MEGATRON_SANITIZE AND NOT folder MATCHES "^(${MEGATRON_SANITIZED_TESTS})$")
    return()
  endif()
  megatron_test_folders()
  if(NOT label STREQUAL pure)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/testing/seed.cpp)
  endif()
  add_executable(${folder}_test ${sources})
  if(folder MATCHES "^(${MEGATRON_UNITY_TESTS})$")
    megatron_unity(${folder}_test)
  else()
    set_target_properties(${folder}_test PROPERTIES UNITY_BUILD OFF)
  endif()
  target_include_directories(${folder}_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${folder}_test PRIVATE megatron_warnings megatron_options test_folders GTest::gtest_main GTest::gmock)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${folder}_test PRIVATE megatron_${dep})
  endforeach()
  if(folder MATCHES "^(comm|parallel)$")
    if(NOT TARGET fake_gpu_hooks)
      add_library(fake_gpu_hooks MODULE ${PROJECT_SOURCE_DIR}/tests/comm/fake_gpu/hooks.cpp)
      target_include_directories(fake_gpu_hooks PRIVATE ${PROJECT_SOURCE_DIR}/src)
      target_link_libraries(fake_gpu_hooks PRIVATE torch_cpu)
      set_target_properties(fake_gpu_hooks PROPERTIES UNITY_BUILD OFF)
    endif()
    add_dependencies(${folder}_test fake_gpu_hooks)
  endif()
  if(label STREQUAL pure OR folder STREQUAL comm)  # compiled without OpenMP
    megatron_precompile(${folder}_test)
  else()
    megatron_precompile(${folder}_test TORCH)
  endif()
  # A test that needs a GPU says so by "Cuda" or "cuda" in its name, and skips itself where there is none.
  set(sanitizers "")
  set(left_out "*Cuda*:*cuda*")
  if(MEGATRON_SANITIZE)
    # libtorch is not instrumented: what its threads do among themselves would be taken for races.
    set(tsan "die_after_fork=0 ignore_noninstrumented_modules=1 suppressions=${PROJECT_SOURCE_DIR}/tests/testing/tsan.supp")
    set(sanitizers "UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=${tsan}")
  endif()
  if(MEGATRON_SANITIZE AND folder STREQUAL plan)  # whole worlds tried one by one, minutes in code that others run too
    string(APPEND left_out ":LayoutSearch.FindsTheFastest*:LayoutSearch.Shares*AsTheFastest*:LayoutSearch.Proposes*:RankRoles.Sum*:RecomputedLayers.ThatFit*")
  endif()
  if(MEGATRON_SANITIZE STREQUAL thread)  # which knows no threads of a process that was forked from several
    string(APPEND left_out ":KilledWhileSaving.*:Kept/VerifyBesideARun.*:Saver.AFullDisk*")
    # A launcher has one thread, and a rank that is a process the same ones whatever their number.
    set(over_gloo ":Sizes/ContractBetweenProcesses.HoldsOverGloo")
    string(APPEND left_out ":Launch.*${over_gloo}/0${over_gloo}/2")
  endif()
  if(MEGATRON_SANITIZE AND folder STREQUAL comm)  # a search for leaks makes ranks end later than launchers wait
    list(APPEND sanitizers ASAN_OPTIONS=detect_leaks=0)
  endif()
  # Several programs share the cores: threads that wait do not spin, and memory of megabytes is kept, not faulted in anew.
  set(shared_machine "OMP_WAIT_POLICY=passive")
  if(NOT MEGATRON_SANITIZE)
    string(APPEND shared_machine ";GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296")
  endif()
  math(EXPR last "${ARG_PARTS} - 1")
  foreach(part RANGE ${last})
    set(name ${folder}.part_${part})
    add_test(NAME ${name} COMMAND ${folder}_test --gtest_filter=-${left_out})
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT} COST ${ARG_PARTS}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_PARTS};GTEST_SHARD_INDEX=${part};${shared_machine};${sanitizers}")
  endforeach()
  file(GLOB gpus /dev/nvidia[0-9]*)
  if(gpus)
    gtest_discover_tests(${folder}_test TEST_PREFIX "${folder}." DISCOVERY_MODE PRE_TEST TEST_FILTER "*Cuda*:*cuda*"
      TEST_LIST ${folder}_gpu_tests PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ON)
    return()
  endif()
  foreach(source ${sources})  # without a GPU: each says so, and all that is asked is whether they begin
    file(STRINGS ${source} needs_gpu REGEX "^TEST.*[Cc]uda" LIMIT_COUNT 1)
    if(needs_gpu)
      add_test(NAME ${folder}.gpu COMMAND ${folder}_test --gtest_filter=*Cuda*:*cuda*)
      set_tests_properties(${folder}.gpu PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${sanitizers}")
      return()
    endif()
  endforeach()
endfunction()

# Classes of tests that take minutes: ctest begins with what costs most.
set(MEGATRON_LONG_CLASSES Install FineTuning MegatronCore SmolLM2 Partition Help Advice Interchange HostileFiles)

# megatron_program_tests(LABEL): tests/LABEL/test_*.py, which run the program as a user does. Each class is a ctest entry,
# so that Python, its packages and what the class prepares are loaded and made once for all of its methods. One method:
# cd tests/e2e/FOLDER && MEGATRON=../../../build/megatron python3 -m unittest FILE.CLASS.METHOD
function(megatron_program_tests label)
  set(folder ${PROJECT_SOURCE_DIR}/tests/${label})
  file(GLOB files CONFIGURE_DEPENDS ${folder}/test_*.py ${folder}/*/test_*.py)
  set(python ${PYTHON3})
  if(label STREQUAL interop)
    set(python ${PROJECT_SOURCE_DIR}/tests/interop/python)
  endif()
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    get_filename_component(folder ${file} DIRECTORY)
    file(STRINGS ${file} lines REGEX "^class |^  +def test_")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    set(classes "")
    foreach(line ${lines})
      if(line MATCHES "^class ([A-Za-z0-9]+)")
        set(class ${CMAKE_MATCH_1})
        list(APPEND classes ${class})
        set(tests_of_${class} "")
      elseif(line MATCHES "def (test_[a-z0-9_]+)")
        list(APPEND tests_of_${class} ${name}.${class}.${CMAKE_MATCH_1})
      endif()
    endforeach()
    foreach(class ${classes})
      if(tests_of_${class})
        set(test ${label}.${class})
        add_test(NAME ${test} COMMAND ${python} -B -m unittest -v ${tests_of_${class}} WORKING_DIRECTORY ${folder})
        set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT 900 ENVIRONMENT "MEGATRON=$<TARGET_FILE:megatron>")
        if(class IN_LIST MEGATRON_LONG_CLASSES)
          set_tests_properties(${test} PROPERTIES COST 100)
        endif()
      endif()
    endforeach()
  endforeach()
endfunction()

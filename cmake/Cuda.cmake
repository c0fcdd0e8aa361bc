# The CUDA plugin, libmegatron_cuda.so: kernels in src/megatron/**/cuda and the NCCL transport. The program loads it
# with dlopen when --device cuda asks for it; nothing links it, and nothing else links libtorch_cuda.
include(CheckLanguage)
set(skip_cuda "")
find_file(NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
find_path(NCCL_INCLUDE nccl.h HINTS ${TORCH_DIR_FOUND}/../nvidia/nccl/include ${TORCH_DIR_FOUND}/../nvidia/cu13/include PATHS /usr/local/cuda/include)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/megatron/*/cuda/*.cu ${PROJECT_SOURCE_DIR}/src/megatron/*/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/megatron/*/nccl_*.cpp)
if(NOT NVCC)
  set(skip_cuda "no nvcc")
elseif(NOT NCCL_INCLUDE)
  set(skip_cuda "no nccl.h")
elseif(NOT EXISTS ${TORCH_DIR_FOUND}/lib/libtorch_cuda.so)
  set(skip_cuda "this libtorch has no libtorch_cuda.so")
elseif(NOT cuda_sources)
  set(skip_cuda "no sources")
endif()
if(skip_cuda)
  message(STATUS "CUDA plugin: not built (${skip_cuda})")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # Ampere, Hopper, Blackwell; later ones compile the PTX when it is loaded
endif()
set(CMAKE_CUDA_COMPILER ${NVCC})
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA plugin: ${NVCC} ${CMAKE_CUDA_COMPILER_VERSION}, nccl.h in ${NCCL_INCLUDE}")

add_library(megatron_cuda SHARED ${cuda_sources})
target_compile_definitions(megatron_cuda PRIVATE USE_C10D_NCCL)
# Phases are constexpr functions of headers that the host compiles too. Without contraction their bits are the host's; in
# attention, which does what it reads many times over, products and sums may be one.
target_compile_options(megatron_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xptxas=-v>)
set_target_properties(megatron_cuda PROPERTIES CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/ptxas_log.sh;${CMAKE_CUDA_COMPILER_LAUNCHER}")
file(GLOB exact_sources ${PROJECT_SOURCE_DIR}/src/megatron/kernels/cuda/*.cu)
list(FILTER exact_sources EXCLUDE REGEX "/(attention|flash).cu$")
set_source_files_properties(${exact_sources} PROPERTIES COMPILE_OPTIONS --fmad=false)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/megatron/kernels/cuda/operators.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
target_include_directories(megatron_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE})
target_link_libraries(megatron_cuda PRIVATE megatron_warnings megatron_comm megatron_kernels megatron_base CUDA::cudart)
foreach(name torch_cuda c10_cuda)
  add_library(${name}_lib SHARED IMPORTED)
  set_target_properties(${name}_lib PROPERTIES IMPORTED_LOCATION ${TORCH_DIR_FOUND}/lib/lib${name}.so)
  target_link_libraries(megatron_cuda PRIVATE ${name}_lib)
endforeach()
# libtorch_cuda names cuDNN, NCCL and more, which only a machine with a GPU has installed. The plugin carries its own
# copy of the static libraries' code and shows none of it.
target_link_options(megatron_cuda PRIVATE -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,--exclude-libs,ALL -Wl,-z,defs -Wl,-z,nodelete)

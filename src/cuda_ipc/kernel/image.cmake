# SPDX-License-Identifier: BSD-3-Clause
#
# The kernels as a fat binary, where there is an nvcc that compiles them; else there are none, and
# CUDA is off. Sets SHMCOLL_KERNEL_IMAGE, the file, or leaves it empty.

find_program(SHMCOLL_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
             PATHS /usr/local/cuda/bin /opt/cuda/bin DOC "NVIDIA's compiler, for the GPU kernels")

# Options that decide the results are stated, even if they are defaults: no multiplication is fused with an addition,
# divisions are rounded rightly, denormals are kept. There is no code for the CPU in it, so any gcc
# will do.
set(shmcoll_nvcc_options -std=c++17 -O3 --fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    -allow-unsupported-compiler)
set(shmcoll_gpus 75 80 86 89 90 100 120) # Turing to Blackwell; others get the PTX

# shmcoll_nvcc_lists(<what> <prefix> <out>): the GPUs that this nvcc compiles for.
function(shmcoll_nvcc_lists what prefix out)
  execute_process(COMMAND ${SHMCOLL_NVCC} --list-gpu-${what} OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "${prefix}_[0-9]+" found "${text}")
  list(TRANSFORM found REPLACE "${prefix}_" "")
  list(SORT found COMPARE NATURAL)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Does it compile anything, with these options? Its preprocessor is the machine's gcc, which it may
# not get on with.
function(shmcoll_nvcc_works ptx out)
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe)
  file(WRITE ${probe}.cu "#include <stdint.h>\n#include <string.h>\n"
       "extern \"C\" __global__ void probe(const __grid_constant__ uint64_t n) {}\n")
  execute_process(
    COMMAND ${SHMCOLL_NVCC} ${shmcoll_nvcc_options} -arch=compute_${ptx} -ptx -o ${probe}.ptx
            ${probe}.cu
    RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(failed)
    string(REGEX MATCH "[^\n]+" first "${text}")
    message(STATUS "GPU kernels: none, ${SHMCOLL_NVCC} does not work: ${first}")
  endif()
  set(${out} "${failed}" PARENT_SCOPE)
endfunction()

# Chooses the lowest PTX, which runs on all, and the GPUs; leaves `ptx` empty where there is no way.
function(shmcoll_choose_gpus ptx_out gpus_out)
  set(${ptx_out} "" PARENT_SCOPE)
  shmcoll_nvcc_lists(arch compute virtual)
  shmcoll_nvcc_lists(code sm real)
  list(FILTER virtual INCLUDE REGEX "^7[5-9]$|^[89].$|^...$") # ld.acquire.sys, and what is tested
  if(NOT virtual)
    message(STATUS "GPU kernels: none, ${SHMCOLL_NVCC} compiles for nothing from sm_75 on")
    return()
  endif()
  list(GET virtual 0 ptx)
  set(wanted ${shmcoll_gpus})
  if(SHMCOLL_CUDA_ARCHS)
    set(wanted ${SHMCOLL_CUDA_ARCHS})
  elseif(SHMCOLL_TESTS)
    set(wanted 90) # an eighth of the time
  endif()
  set(gpus)
  foreach(gpu IN LISTS wanted)
    if(gpu IN_LIST real AND gpu GREATER_EQUAL ptx)
      list(APPEND gpus ${gpu})
    else()
      message(STATUS "GPU kernels: this nvcc has no sm_${gpu} (from ${ptx} on); left out")
    endif()
  endforeach()
  shmcoll_nvcc_works(${ptx} failed)
  if(NOT failed)
    set(${ptx_out} ${ptx} PARENT_SCOPE)
    set(${gpus_out} "${gpus}" PARENT_SCOPE)
  endif()
endfunction()

set(SHMCOLL_KERNEL_IMAGE "")
set(shmcoll_ptx "")
if(NOT SHMCOLL_CUDA)
  message(STATUS "GPU kernels: none, SHMCOLL_CUDA is off")
elseif(SHMCOLL_SANITIZE)
  message(STATUS "GPU kernels: none, a sanitizer sees nothing of them")
elseif(NOT SHMCOLL_NVCC)
  message(STATUS "GPU kernels: none, there is no nvcc; CUDA is off")
else()
  shmcoll_choose_gpus(shmcoll_ptx shmcoll_chosen_gpus)
endif()

if(shmcoll_ptx)
  message(STATUS "GPU kernels: PTX ${shmcoll_ptx}, and code for: ${shmcoll_chosen_gpus}")
  set(SHMCOLL_KERNEL_IMAGE ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  # All code is made from the one PTX: the compiler proper runs once.
  set(code compute_${shmcoll_ptx})
  foreach(gpu IN LISTS shmcoll_chosen_gpus)
    string(APPEND code ",sm_${gpu}")
  endforeach()
  if(SHMCOLL_TESTS)
    list(APPEND shmcoll_nvcc_options -no-compress) # tests/cuda/image_test.cc reads it
  else()
    list(APPEND shmcoll_nvcc_options -Xfatbin -compress-all) # an eighth of the size
  endif()
  set(includes ${PROJECT_SOURCE_DIR}/src)
  set(kernel ${CMAKE_CURRENT_SOURCE_DIR}/kernel)
  add_custom_command(
    OUTPUT ${SHMCOLL_KERNEL_IMAGE}
    COMMAND ${SHMCOLL_NVCC} ${shmcoll_nvcc_options} --threads 0 -I${includes} -fatbin
            -gencode=arch=compute_${shmcoll_ptx},code=[${code}] -o ${SHMCOLL_KERNEL_IMAGE}
            ${kernel}/kernels.cu
    DEPENDS ${kernel}/kernels.cu ${kernel}/bodies.cuh ${kernel}/combine.cuh ${kernel}/device.cuh
            ${kernel}/args.h ${kernel}/list.h ${includes}/shm/kernel/half.h
            ${includes}/shm/kernel/ops.h ${includes}/shm/kernel/ops_int_tmpl.h
            ${includes}/shm/base/attrs.h ${includes}/shm/shmcoll.h
    COMMENT "Compiling the GPU kernels" VERBATIM)
endif()

# Finds the pinned Torch wheel and gives the engine what it builds with:
#
#   FIVEFOLD_TORCH_ROOT             the wheel's folder
#   fivefold::torch                 headers and CPU libraries of the wheel, for src/engine and its tests only
#   fivefold_engine_pch(target)     makes a target an engine target: Torch, -fopenmp, the shared precompiled header
#
# The wheel's own CMake package is not used: it asks for the CUDA toolkit when the wheel is a CUDA build, links protobuf
# into everything and warns about libraries that a wheel never carries. The engine needs an include path and two
# libraries.
#
# Where Torch is looked for, first match wins: FIVEFOLD_TORCH_DIR (the folder that holds include/ and lib/),
# CMAKE_PREFIX_PATH (also as the wheel's share/cmake), the repository's .venv (made by scripts/setup.sh).

set(FIVEFOLD_TORCH_DIR "" CACHE PATH "Torch's folder with include/ and lib/; empty: CMAKE_PREFIX_PATH, then .venv")

function(fivefold_find_torch)
  if(FIVEFOLD_TORCH_DIR)
    set(candidates "${FIVEFOLD_TORCH_DIR}")
  else()
    set(candidates "")
    foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
      list(APPEND candidates "${prefix}" "${prefix}/../..")
    endforeach()
    file(GLOB wheels "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
    list(APPEND candidates ${wheels})
  endif()
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}/include/ATen/ATen.h" AND EXISTS "${candidate}/lib/libtorch_cpu.so")
      get_filename_component(root "${candidate}" ABSOLUTE)
      break()
    endif()
  endforeach()
  if(NOT root)
    message(FATAL_ERROR "Torch not found (looked in: ${candidates}). Run scripts/setup.sh, or set FIVEFOLD_TORCH_DIR, "
                        "or build without the engine: -DFIVEFOLD_ENGINE=OFF")
  endif()
  message(STATUS "Torch: ${root}")
  set(FIVEFOLD_TORCH_ROOT "${root}" PARENT_SCOPE)

  add_library(fivefold::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(fivefold::torch SYSTEM INTERFACE "${root}/include")
  target_link_libraries(fivefold::torch INTERFACE "${root}/lib/libtorch_cpu.so" "${root}/lib/libc10.so")
endfunction()

fivefold_find_torch()

# at::parallel_for is header code that silently runs serially in files compiled without -fopenmp, hence PUBLIC here.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/fivefold_aten_pch.cc" CONTENT "#include <ATen/ATen.h>\n" @ONLY)
add_library(fivefold_aten_pch OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/fivefold_aten_pch.cc")
target_link_libraries(fivefold_aten_pch PUBLIC fivefold::torch)
target_compile_options(fivefold_aten_pch PUBLIC -fopenmp)
target_link_options(fivefold_aten_pch PUBLIC -fopenmp)
target_precompile_headers(fivefold_aten_pch PRIVATE <ATen/ATen.h>)

# <ATen/ATen.h> costs 7 s in each file, 1.6 s from the one precompiled header. GCC accepts that header only under the
# same code model: CMake would give an executable -fPIE, so every engine target is compiled with -fPIC.
function(fivefold_engine_pch target)
  target_link_libraries(${target} PUBLIC fivefold::torch)
  target_compile_options(${target} PUBLIC -fopenmp)
  target_link_options(${target} PUBLIC -fopenmp)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM fivefold_aten_pch)
  if(TARGET ${target}_headers)
    target_precompile_headers(${target}_headers REUSE_FROM fivefold_aten_pch)
  endif()
endfunction()

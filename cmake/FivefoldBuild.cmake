# Shared build rules: compiler settings, one function for a folder's library and its tests, and the check that every
# test file on disk is registered.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

# ccache: the sloppiness is what it needs to cache files that use a precompiled header; the base folder lets a second
# clone hit what the first one compiled.
find_program(FIVEFOLD_CCACHE ccache)
if(FIVEFOLD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                  "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${FIVEFOLD_CCACHE}")
endif()

# GCC 12 reports overlaps that cannot be for string concatenation (its bug 105651), and designated initialisers leave
# members to their defaults on purpose.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-restrict -Wno-missing-field-initializers)
if(FIVEFOLD_SANITIZE)
  add_compile_options(-fsanitize=${FIVEFOLD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined -g)
  add_link_options(-fsanitize=${FIVEFOLD_SANITIZE})
endif()

if(FIVEFOLD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "FIVEFOLD_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++-14")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# fivefold_library(NAME SOURCES a.cc... [DEPS targets...] [SHARED] [TORCH])
#   A static (or shared) library fivefold_NAME whose headers are included as "NAME/header.h". TORCH makes it an engine
#   target. The target fivefold_headers compiles each header of the folder alone.
function(fivefold_library name)
  cmake_parse_arguments(ARG "SHARED;TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SHARED)
    set(kind SHARED)
  else()
    set(kind STATIC)
  endif()
  add_library(fivefold_${name} ${kind} ${ARG_SOURCES})
  target_include_directories(fivefold_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>")
  # No header of the project includes fmt (lint.layering), so users of an installed fivefold do not need it.
  target_link_libraries(fivefold_${name} PUBLIC ${ARG_DEPS} $<BUILD_INTERFACE:fmt::fmt-header-only>)
  fivefold_header_check(${name})
  if(ARG_TORCH)
    fivefold_engine_pch(fivefold_${name})
  endif()
endfunction()

# Makes fivefold_NAME_headers: one translation unit for each header under the calling folder, which includes it and
# nothing before it, and includes it again to test its guard; compiled as fivefold_NAME is. Not part of a plain build;
# lint.headers builds them.
add_custom_target(fivefold_headers)
function(fivefold_header_check name)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/src" "${CMAKE_CURRENT_SOURCE_DIR}/*.h")
  set(units "")
  foreach(header IN LISTS headers)
    set(unit "${PROJECT_BINARY_DIR}/headers/${header}.cc")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${header}\"\n#include \"${header}\"\n" @ONLY)
    list(APPEND units "${unit}")
  endforeach()
  if(NOT units)
    return()
  endif()
  add_library(fivefold_${name}_headers OBJECT EXCLUDE_FROM_ALL ${units})
  target_include_directories(fivefold_${name}_headers PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(fivefold_${name}_headers PRIVATE "$<TARGET_PROPERTY:fivefold_${name},COMPILE_OPTIONS>")
  target_link_libraries(fivefold_${name}_headers PRIVATE
                        "$<GENEX_EVAL:$<TARGET_PROPERTY:fivefold_${name},LINK_LIBRARIES>>")
  add_dependencies(fivefold_headers fivefold_${name}_headers)
endfunction()

# fivefold_tests(NAME FILES a_test.cc... [DEPS targets...] [TIMEOUT seconds] [WHOLE] [TORCH])
#   One test executable for a folder. WHOLE makes it one ctest entry per file instead of one per test case: for tests
#   whose process start is expensive. TORCH makes them engine targets.
function(fivefold_tests name)
  if(NOT FIVEFOLD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "WHOLE;TORCH" "TIMEOUT" "FILES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foreach(file IN LISTS ARG_FILES)
    set_property(GLOBAL APPEND PROPERTY FIVEFOLD_REGISTERED_TESTS "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  endforeach()
  if(ARG_WHOLE)
    foreach(file IN LISTS ARG_FILES)
      get_filename_component(stem "${file}" NAME_WE)
      fivefold_test_executable(${name}_${stem})
      add_test(NAME ${name}.${stem} COMMAND ${name}_${stem})
      set_tests_properties(${name}.${stem} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    endforeach()
  else()
    set(file ${ARG_FILES})
    fivefold_test_executable(${name}_test)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  endif()
endfunction()

# One test executable of ${file}; reads the arguments of fivefold_tests, its only caller.
macro(fivefold_test_executable target)
  add_executable(${target} ${file})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE FIVEFOLD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(ARG_TORCH)
    fivefold_engine_pch(${target})
  endif()
endmacro()

# Configure fails when a *_test.cc on disk is not part of any test executable (a test nobody runs).
function(fivefold_require_registered_tests)
  if(NOT FIVEFOLD_TESTS)
    return()
  endif()
  get_property(registered GLOBAL PROPERTY FIVEFOLD_REGISTERED_TESTS)
  file(GLOB_RECURSE on_disk CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/*_test.cc"
       "${PROJECT_SOURCE_DIR}/tests/*_test.cc")
  foreach(file IN LISTS on_disk)
    if(NOT FIVEFOLD_ENGINE AND file MATCHES "/(engine|tests/oracle|tests/distributed)/")
      continue()
    endif()
    if(NOT file IN_LIST registered)
      message(FATAL_ERROR "${file} is not registered: add it to fivefold_tests() of its folder")
    endif()
  endforeach()
endfunction()

# `cmake --install`: the program, the engine's shared library, configs/, documentation, and the package that
# find_package(fivefold) finds: headers, static libraries, targets fivefold::NAME. docs/cpp.md tells users of it.
#
# Headers keep their folders under include/fivefold, which is the include directory: `#include "planner/ledger.h"` reads
# the same in this tree and in a project that uses it.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(headers "${CMAKE_INSTALL_INCLUDEDIR}/fivefold")
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/fivefold")
set(data "${CMAKE_INSTALL_DATADIR}/fivefold")

# Installs libraries as targets fivefold::NAME, in the export set that NAME names.
function(fivefold_export set)
  foreach(name IN LISTS ARGN)
    set_target_properties(fivefold_${name} PROPERTIES EXPORT_NAME ${name})
    install(TARGETS fivefold_${name} EXPORT fivefold_${set} ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
            INCLUDES DESTINATION "${headers}")
  endforeach()
  install(EXPORT fivefold_${set} NAMESPACE fivefold:: FILE fivefold-${set}.cmake DESTINATION "${package}")
endfunction()

# Headers of whole folders, without what only their tests use.
function(fivefold_install_headers)
  foreach(folder IN LISTS ARGN)
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/src/${folder}" DESTINATION "${headers}"
            FILES_MATCHING PATTERN "*.h" PATTERN "*_test*.h" EXCLUDE PATTERN "testdata" EXCLUDE)
  endforeach()
endfunction()

fivefold_export(planner base spec schedule planner record reconcile)
fivefold_export(kernels kernels)
fivefold_install_headers(base spec schedule planner record reconcile kernels)

if(FIVEFOLD_ENGINE)
  fivefold_export(engine engine_api)
  set_target_properties(fivefold_engine_api PROPERTIES EXPORT_NAME engine)
  # Of the engine: the interface of programs, which is free of Torch, and what an operation is written and tested with.
  foreach(header IN ITEMS comm/call_log.h comm/comm_counters.h comm/comm_error.h comm/communicator.h comm/flight_recorder.h
                          engine/calibrate_request.h engine/engine_api.h engine/generate_request.h engine/layers/primitives.h
                          engine/memory/counting_allocator.h engine/tensors.h)
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${PROJECT_SOURCE_DIR}/src/${header}" DESTINATION "${headers}/${folder}")
  endforeach()
  set_target_properties(fivefold_engine PROPERTIES INSTALL_RPATH "${FIVEFOLD_TORCH_ROOT}/lib")
  install(TARGETS fivefold_engine LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()

install(TARGETS fivefold RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${data}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/README.zh.md"
              "${PROJECT_SOURCE_DIR}/CHANGELOG.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(library_folder "${CMAKE_INSTALL_LIBDIR}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fivefold-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/fivefold-config.cmake" INSTALL_DESTINATION "${package}"
                              PATH_VARS data headers library_folder)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fivefold-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fivefold-config.cmake" "${PROJECT_BINARY_DIR}/fivefold-config-version.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/installation.cc.in"
        DESTINATION "${package}")

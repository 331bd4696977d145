# cmake --install: the program, the library of everything below the command (engine, quant, layers,
# optim, parallel and tools/session, a model on a place) as one archive, its headers, and the package
# Snug, whose target Snug::snug brings the include folder, the flags that inline code was compiled
# with, and the libraries to link. tests/install builds a program against it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(objects GLOBAL PROPERTY SNUG_LIBRARY_OBJECTS)
add_library(snug_library STATIC ${objects})
set_target_properties(snug_library PROPERTIES OUTPUT_NAME snug EXPORT_NAME snug LINKER_LANGUAGE CXX)
set(snug_headers ${CMAKE_INSTALL_INCLUDEDIR}/snug)
target_include_directories(snug_library INTERFACE $<INSTALL_INTERFACE:${snug_headers}>)
target_compile_features(snug_library INTERFACE cxx_std_20)
# Inline code of both sides is one: without these its bits would depend on which copy the linker takes.
target_compile_options(snug_library INTERFACE -march=x86-64-v3 -ffp-contract=off)
if(cuda_built)
  target_compile_definitions(snug_library INTERFACE SNUG_CUDA)
  target_link_libraries(snug_library INTERFACE CUDA::cudart_static)
endif()
if(SNUG_OPENMP)
  target_link_libraries(snug_library INTERFACE OpenMP::OpenMP_CXX)
endif()
if(SNUG_SANITIZE)
  target_link_options(snug_library INTERFACE ${sanitizers})
endif()
target_link_libraries(snug_library INTERFACE fmt::fmt nlohmann_json::nlohmann_json PkgConfig::PCRE2
  PkgConfig::UTF8PROC PkgConfig::ZLIB PkgConfig::ZSTD Threads::Threads ${CMAKE_DL_LIBS})

set(snug_package ${CMAKE_INSTALL_LIBDIR}/cmake/Snug)
configure_package_config_file(${CMAKE_SOURCE_DIR}/tools/SnugConfig.cmake.in
  ${CMAKE_BINARY_DIR}/generated/SnugConfig.cmake INSTALL_DESTINATION ${snug_package}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/SnugConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/SnugConfig.cmake
  ${CMAKE_BINARY_DIR}/generated/SnugConfigVersion.cmake DESTINATION ${snug_package})
install(TARGETS snug_library EXPORT SnugTargets DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT SnugTargets NAMESPACE Snug:: DESTINATION ${snug_package})
install(TARGETS snug DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY engine quant layers optim parallel DESTINATION ${snug_headers}
  FILES_MATCHING PATTERN "*.h"
  # Bodies of loops, each for the files of one instruction set.
  REGEX "_(avx512|avx2|bf16|body)[.]h$" EXCLUDE REGEX "/(wide|row_loops_[a-z]+)[.]h$" EXCLUDE)
install(DIRECTORY tools/session DESTINATION ${snug_headers}/tools FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/generated/snug_optim_rules.h DESTINATION ${snug_headers})

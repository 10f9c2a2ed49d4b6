# Installs the public headers, the library with what it stands on, and the program. An embedder
# writes find_package(aquifer) and links aquifer::aquifer.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(TARGET aquifer)
  # The library is cache and client with their closure; node, sim and the test fakes stay at home.
  set(pending cache client)
  set(installed "")
  while(pending)
    list(POP_FRONT pending folder)
    if(NOT folder IN_LIST installed)
      list(APPEND installed ${folder})
      get_property(deps GLOBAL PROPERTY AQUIFER_DEPS_OF_${folder})
      list(APPEND pending ${deps})
    endif()
  endwhile()
  list(TRANSFORM installed PREPEND aquifer_)

  install(TARGETS aquifer ${installed} EXPORT aquiferTargets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION include)
  set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/aquifer")
  install(EXPORT aquiferTargets NAMESPACE aquifer:: DESTINATION "${config_dir}")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/aquiferConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/aquiferConfig.cmake" INSTALL_DESTINATION "${config_dir}")
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/aquiferConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES
    "${PROJECT_BINARY_DIR}/aquiferConfig.cmake"
    "${PROJECT_BINARY_DIR}/aquiferConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/FindLiburing.cmake"
    DESTINATION "${config_dir}")
endif()

# The C ABI, for pkg-config and for CMake as aquifer::c.
if(TARGET aquifer_c)
  install(TARGETS aquifer_c EXPORT aquiferTargets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION include)
  # From where the file is, so that the installation can be moved.
  file(RELATIVE_PATH to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/aquifer.pc.in" "${PROJECT_BINARY_DIR}/aquifer.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/aquifer.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

if(EXISTS "${PROJECT_SOURCE_DIR}/include/aquifer")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/aquifer" DESTINATION include)
endif()
if(TARGET aquifer_program)
  install(TARGETS aquifer_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # `aquifer bench` finds it there (src/cli/find_program.h).
  install(TARGETS aquifer_bench_program RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/aquifer")
endif()
if(TARGET aquifer_node)
  install(FILES "${PROJECT_SOURCE_DIR}/etc/aquifer.toml"
    DESTINATION "${CMAKE_INSTALL_SYSCONFDIR}/aquifer")
  # An example: nobody has its tenant's token.
  install(FILES "${PROJECT_SOURCE_DIR}/etc/tenants.toml" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
endif()

# The files that python/aquifer looks for beside its modules. A wheel has no links, hence one plain name.
if(AQUIFER_WHEEL)
  set_target_properties(aquifer_c PROPERTIES VERSION "" SOVERSION "" NO_SONAME ON)
  install(TARGETS aquifer_c LIBRARY DESTINATION aquifer/native COMPONENT python)
  install(TARGETS aquifer_program aquifer_bench_program
    RUNTIME DESTINATION aquifer/native COMPONENT python)
endif()

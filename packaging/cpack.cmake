# SPDX-License-Identifier: BSD-3-Clause
#
# Packages of the C library, by `make deb` or by cpack in a build folder: libshmcollN and libshmcoll-dev
# for Debian, and an archive (TGZ) that can be unpacked anywhere.

set(CPACK_PACKAGE_NAME shmcoll)
set(CPACK_PACKAGE_VENDOR "the shmcoll authors")
set(CPACK_PACKAGE_CONTACT "the shmcoll authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Collectives for ranks that share one machine")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION}${shmcoll_pre})
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)

set(CPACK_COMPONENTS_ALL runtime namelink headers)
set(CPACK_COMPONENT_RUNTIME_GROUP runtime)
set(CPACK_COMPONENT_NAMELINK_GROUP development)
set(CPACK_COMPONENT_HEADERS_GROUP development)
set(CPACK_COMPONENT_GROUP_RUNTIME_DESCRIPTION "The shared library.")
set(CPACK_COMPONENT_GROUP_DEVELOPMENT_DESCRIPTION "Header and files for pkg-config and CMake.")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
if(shmcoll_pre) # 1.0.0~rc1 is older than 1.0.0
  string(APPEND CPACK_DEBIAN_PACKAGE_VERSION ~${shmcoll_pre})
endif()
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libshmcoll${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS libnuma1)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libshmcoll-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=") # newer minor versions run what was linked with this
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libshmcoll${PROJECT_VERSION_MAJOR} (= ${CPACK_DEBIAN_PACKAGE_VERSION})")

# Debian wants the license under the name of each package.
include(GNUInstallDirs)
set(doc ${CMAKE_INSTALL_DATADIR}/doc)
install(FILES LICENSE DESTINATION ${doc}/libshmcoll${PROJECT_VERSION_MAJOR} RENAME copyright
        COMPONENT runtime)
install(FILES LICENSE DESTINATION ${doc}/libshmcoll-dev RENAME copyright COMPONENT namelink)

include(CPack)

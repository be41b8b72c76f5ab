# A Debian package: scripts/deb makes it. Program, C library, headers, documents, and a service that is off until it is enabled.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VENDOR Quire)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serves language models and keeps their KV cache")
set(CPACK_PACKAGE_DESCRIPTION "Quire loads a GGUF file or a Hugging Face folder and answers over the APIs that clients know.
Keys and values of every token are kept in a cache that is paged, shared, compressed, and survives a restart.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Quire authors <quire@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/conffiles)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON)  # /etc is not below the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL Unspecified service)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
# `cmake --install` elsewhere gets no service: EXCLUDE_FROM_ALL.
install(FILES ${PROJECT_SOURCE_DIR}/packaging/quire.service DESTINATION lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/quire.toml DESTINATION /etc/quire COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/quire RENAME copyright
        COMPONENT service EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/quire COMPONENT service
        EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.md)
include(CPack)

# Makes one C++ string of the page's files: cmake -D FOLDER=... -D OUT=page.cc -P embed_page.cmake
#
# index.html names its parts as a browser would (<link href="x.css">, <script src="x.js">), so the folder also works
# unbundled; here each is put in place of the element that names it.
file(READ ${FOLDER}/index.html html)
foreach(kind css js)
  file(GLOB parts ${FOLDER}/*.${kind})
  foreach(part ${parts})
    get_filename_component(name ${part} NAME)
    file(READ ${part} text)
    if(kind STREQUAL "css")
      string(REPLACE "<link rel=\"stylesheet\" href=\"${name}\">" "<style>\n${text}</style>" html "${html}")
    else()
      string(REPLACE "<script src=\"${name}\"></script>" "<script>\n${text}</script>" html "${html}")
    endif()
  endforeach()
endforeach()
if(html MATCHES "(href|src)=\"[a-z_]+\\.(css|js)\"")
  message(FATAL_ERROR "index.html names ${CMAKE_MATCH_0}, which is not in ${FOLDER}")
endif()
file(WRITE ${OUT}.html "${html}")  # the same for a browser test without the program
file(WRITE ${OUT}.new "#include \"server/page.h\"\n\nnamespace quire {\n\n"
     "std::string_view page_html() {\n  static constexpr char kHtml[] = R\"~quire~(${html})~quire~\";\n"
     "  return {kHtml, sizeof kHtml - 1};\n}\n\n}  // namespace quire\n")
file(RENAME ${OUT}.new ${OUT})

# quern_embed(target name file...): the files' bytes become part of `target`, as
# quern::embedded::NAME::FILE, a std::string_view, declared in "embedded/NAME.h". FILE is the file's name
# with every character that C++ does not allow in a name made "_": page.html is page_html.
# Made at build time, again whenever a file changes.

function(quern_embed target name)
  set(paths "")
  foreach(file IN LISTS ARGN)
    get_filename_component(path ${file} ABSOLUTE)
    list(APPEND paths ${path})
  endforeach()
  set(output ${quern_generated}/embedded/${name})
  string(REPLACE ";" "|" joined "${paths}")
  add_custom_command(
    OUTPUT ${output}.cpp ${output}.h
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} "-DFILES=${joined}" -DOUTPUT=${output} -P
            ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${paths} ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    COMMENT "" VERBATIM)
  target_sources(${target} PRIVATE ${output}.cpp)
  target_include_directories(${target} PRIVATE ${quern_generated})
endfunction()

# The other half of this file runs at build time: cmake -DNAME= -DFILES=a|b -DOUTPUT= -P EmbedFiles.cmake
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(declarations "")
  set(definitions "")
  string(REPLACE "|" ";" FILES "${FILES}")
  foreach(file IN LISTS FILES)
    get_filename_component(variable ${file} NAME)
    string(MAKE_C_IDENTIFIER ${variable} variable)
    file(READ ${file} bytes HEX)
    file(SIZE ${file} size)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
    string(REPEAT "." 96 line) # 24 bytes
    string(REGEX REPLACE "(${line})" "\\1\"\n    \"" bytes "${bytes}")
    string(APPEND declarations "extern const std::string_view ${variable};\n")
    string(APPEND definitions "constinit const std::string_view ${variable}{\n    \"${bytes}\", ${size}};\n")
  endforeach()
  set(first "// Made by cmake/EmbedFiles.cmake.\n")
  set(open "namespace quern::embedded::${NAME} {\n\n")
  set(close "\n}  // namespace quern::embedded::${NAME}\n")
  file(WRITE ${OUTPUT}.h "${first}#pragma once\n\n#include <string_view>\n\n${open}${declarations}${close}")
  file(WRITE ${OUTPUT}.cpp "${first}#include \"embedded/${NAME}.h\"\n\n${open}${definitions}${close}")
endif()

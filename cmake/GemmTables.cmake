# generated/shipped_gemm_tables.h: the text of every src/kernels/cuda/gemm/gemm_tables/*.txt, so that the program carries its
# tables of cuBLASLt algorithms. `quern tune` wrote each on the GPU in its name.

file(GLOB quern_gemm_tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/gemm/gemm_tables/*.txt)
set(text "// Made by cmake/GemmTables.cmake.\ninline const char* const kShippedGemmTables[] = {\n")
foreach(table IN LISTS quern_gemm_tables)
  file(READ ${table} content)
  string(APPEND text "R\"table(${content})table\",\n")
endforeach()
string(APPEND text "\"\"};  // not empty without tables\n")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${quern_gemm_tables})
file(CONFIGURE OUTPUT ${quern_generated}/shipped_gemm_tables.h CONTENT "${text}" @ONLY)

# quern_cpu_levels(target options): compiles the target's CPU kernels, src/kernels/cpu, once per level of the
# processor's vector instructions. The target gets all of them and picks one when the program starts
# (src/kernels/cpu/level.h). `options` names the function that gives a library the kernels' options.
# One level, that of the whole build: for one machine alone, for other architectures, under sanitizers and for coverage.

set(quern_levels avx2 avx512 avx512_bf16 amx)
set(quern_level_flags_avx2 -march=x86-64-v3)
set(quern_level_flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512 ${quern_avx512_warnings})
set(quern_level_flags_avx512_bf16 ${quern_level_flags_avx512} -mavx512bf16)
set(quern_level_flags_amx ${quern_level_flags_avx512_bf16} -mamx-tile -mamx-bf16
    -DQUERN_CPU_TILES)
# The files that a level compiles anew; the rest is the level before. Not set: all. A file of the folder calls the kernels
# of its own level, so those that multiply operands in BF16 are compiled with gemm.cpp.
set(quern_level_files_avx512_bf16 gemm|decode_linear)
set(quern_level_files_amx ${quern_level_files_avx512_bf16})

function(quern_cpu_levels target options)
  if(NOT "-march=x86-64-v3" IN_LIST quern_cpu_flags OR QUERN_SANITIZE OR NOT CMAKE_OBJCOPY OR NOT CMAKE_NM
     OR CMAKE_CXX_FLAGS_RELEASE MATCHES "--coverage")
    if("-march=x86-64-v3" IN_LIST quern_cpu_flags)
      set(level avx2)
    elseif(QUERN_NATIVE)
      set(level native)
    else()
      set(level portable)
    endif()
    set_source_files_properties(src/kernels/cpu/level.cpp PROPERTIES COMPILE_DEFINITIONS QUERN_CPU_LEVEL="${level}")
    return()
  endif()
  get_target_property(all ${target} SOURCES)
  set(sources ${all})
  list(FILTER sources INCLUDE REGEX "/src/kernels/cpu/.*[.]cpp$")
  list(FILTER sources EXCLUDE REGEX "/(level|threads)[.]cpp$")
  list(REMOVE_ITEM all ${sources})
  set_target_properties(${target} PROPERTIES SOURCES "${all}")

  set(folder ${PROJECT_BINARY_DIR}/generated/cpu_levels)
  file(MAKE_DIRECTORY ${folder})
  set(products ${folder}/cpu_kernels.cpp)
  set(arguments "")
  set(objects "")
  foreach(level IN LISTS quern_levels)
    set(library ${target}_${level})
    set(level_sources ${sources})
    if(DEFINED quern_level_files_${level})
      list(FILTER level_sources INCLUDE REGEX "/(${quern_level_files_${level}})[.]cpp$")
    endif()
    add_library(${library} OBJECT ${level_sources})
    quern_compile_portable(${library})
    cmake_language(CALL ${options} ${library})
    target_compile_options(${library} PRIVATE ${quern_level_flags_${level}})
    # Static variables of inline functions would else be one for all levels, and could not be made local.
    target_compile_options(${library} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    list(APPEND arguments -- ${level} $<TARGET_OBJECTS:${library}>)
    list(APPEND objects $<TARGET_OBJECTS:${library}>)
    list(APPEND products ${folder}/cpu_kernels.${level}.o)
  endforeach()
  set(script ${PROJECT_SOURCE_DIR}/cmake/cpu_levels.sh)
  add_custom_command(
    OUTPUT ${products}
    COMMAND ${script} ${folder} ${CMAKE_LINKER} ${CMAKE_OBJCOPY} ${CMAKE_NM} ${arguments}
    DEPENDS ${script} ${objects}
    COMMENT "Joining the levels of the CPU kernels"
    COMMAND_EXPAND_LISTS VERBATIM)
  target_sources(${target} PRIVATE ${products})
  set_source_files_properties(src/kernels/cpu/level.cpp PROPERTIES COMPILE_DEFINITIONS QUERN_CPU_LEVELS)
endfunction()

# Flags, packages and the one function that makes a module out of a folder.

find_package(Boost 1.81 REQUIRED)  # headers: Asio and Beast
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(benchmark REQUIRED)  # also in the program: quire bench kv
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(edit REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(uring IMPORTED_TARGET liburing)  # without it the disk tier reads and writes with threads
pkg_check_modules(zmq IMPORTED_TARGET libzmq)  # without it there are no KV events over ZeroMQ (scripts/setup --events)
pkg_check_modules(curl IMPORTED_TARGET libcurl>=7.88)  # without it no store is in S3 (scripts/setup --s3)
if(QUIRE_TESTS)
  find_package(GTest REQUIRED)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # Paths relative to the checkout, so that every clone of it shares the compiler cache.
  set(in_checkout ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1)
  set(launcher ${in_checkout} CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  set(cuda_launcher ${in_checkout} ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()
find_program(MOLD mold)
if(MOLD AND NOT QUIRE_FUZZERS)
  add_link_options(-fuse-ld=mold)
endif()
# Four fifths of a release test are lines to name in a stack; zlib is what the sanitizers' reader of them understands.
add_link_options(-Wl,--compress-debug-sections=zlib)

# Contraction is off everywhere: an fma happens where the source says so, and nowhere else (same answer, everywhere).
add_compile_options(-Wall -Wextra -Wshadow -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                    -ffp-contract=off -fno-math-errno -g1)
# Looking for memory to use again takes GCC a tenth of its time; a fifth more memory spares it that.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options(-fstack-protector-strong)
  add_compile_definitions(_FORTIFY_SOURCE=2)
  add_link_options(-Wl,-z,relro,-z,now)
endif()
if(QUIRE_SANITIZE)
  # What a null or freed object is used for, the address sanitizer sees; checking it twice costs a third of the build.
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-sanitize=null,vptr,object-size -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  add_compile_definitions(QUIRE_SANITIZED=1)
  add_compile_options(-w)  # the release build says them all; looking for them is a tenth of the time
endif()
if(QUIRE_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the libraries steers the fuzzers
endif()

# Files named *_avx2.cc, *_avx512.cc, *_vnni.cc and *_bf16.cc are compiled for that instruction set and chosen at run time. They
# keep everything in anonymous namespaces, so that the linker cannot pick their copy of a shared inline function.
set(QUIRE_ISA_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(QUIRE_ISA_avx512 ${QUIRE_ISA_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(QUIRE_ISA_vnni ${QUIRE_ISA_avx512} -mavx512vnni)
set(QUIRE_ISA_bf16 ${QUIRE_ISA_vnni} -mavx512bf16)
if(QUIRE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # They are compared with the scalar reference, which is watched whole; here it is addresses that matter. Checking more
  # doubles the time they take to compile, and threads make every test five times slower. GCC aligns vectors on its stack
  # to 64 bytes, but not on the one it keeps to find uses after return (PR 110027).
  set(QUIRE_CHECK_BY_CALLS --param=asan-instrumentation-with-call-threshold=0)  # compiles faster, runs slower
  foreach(isa avx2 avx512 vnni bf16)
    list(APPEND QUIRE_ISA_${isa} -fno-sanitize=undefined,thread --param=asan-use-after-return=0)
  endforeach()
endif()

# Tests and the command line are compiled for a quick build, not for speed: what they test is in the libraries. They name
# the fields they mean and leave the others as they are.
set(QUIRE_QUICK_BUILD -Wno-missing-field-initializers -O1)
if(QUIRE_SANITIZE)
  set(QUIRE_QUICK_BUILD -Wno-missing-field-initializers -O0 ${QUIRE_CHECK_BY_CALLS})
endif()

# Reading gtest's headers takes longer than compiling a small test, so they are read once for all of them. GCC takes what
# it has read only where flags are the same, so the program that owns them is made as tests are.
set(QUIRE_TEST_BUILD ${QUIRE_QUICK_BUILD} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # ccache asks for the last
if(QUIRE_SANITIZE MATCHES "undefined")
  list(APPEND QUIRE_TEST_BUILD -fno-sanitize=undefined)  # of tests' own arithmetic: a quarter of the time
endif()
if(QUIRE_TESTS)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
  add_executable(quire_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/test_headers.cc)
  target_compile_options(quire_test_headers PRIVATE ${QUIRE_TEST_BUILD})
  target_precompile_headers(quire_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h>)
  target_link_libraries(quire_test_headers PRIVATE GTest::gtest GTest::gmock fmt::fmt Threads::Threads)
endif()

# `checks` builds the programs of the tests labelled unit, fuzz and sim, which is all that the sanitizer builds run;
# `fuzzers` the libFuzzer programs.
add_custom_target(checks)
add_custom_target(fuzzers)
add_library(quire_fuzz_main OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fuzz_main.cc)

# quire_module(NAME [APART] [UNSHARED] [ALONE files...] [USES modules and libraries...]) makes library quire_NAME of the
# folder's .cc files, a test of each *_test.cc, a fuzzer of each *_fuzz.cc and a benchmark of each *_bench.cc. The thread
# sanitizer's build has only tests that start threads: those that speak of threads, a service or a server, and none of
# modules marked UNSHARED, whose threads share nothing that they write. Headers cost more to read than code to compile, so
# nine files are compiled as one, but in Debug builds, in modules marked APART, whose files are alike down to their names,
# and files that have flags of their own or are named ALONE.
function(quire_module name)
  cmake_parse_arguments(arg "APART;UNSHARED" "" "ALONE;USES" ${ARGN})
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(library ${sources})
  list(FILTER library EXCLUDE REGEX "_(test|fuzz|bench)\\.cc$")
  set(target quire_${name})
  if(library)
    set(compiled ${library})
    if(NOT arg_APART AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
      quire_join(compiled ${name} "${arg_ALONE}")
    endif()
    add_library(${target} STATIC ${compiled})
    if(NOT compiled STREQUAL library)
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    endif()
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${target} PUBLIC ${arg_USES} fmt::fmt Threads::Threads)
    foreach(isa avx2 avx512 vnni bf16)
      foreach(source ${library})
        if(source MATCHES "_${isa}\\.cc$")
          set(options ${QUIRE_ISA_${isa}})
          if(QUIRE_SANITIZE MATCHES "address" AND source MATCHES "/linear_")
            # A function for each type and number of rows: the larger ones check by calls, or it takes 75 s instead of 21.
            list(APPEND options --param=asan-instrumentation-with-call-threshold=160)
          endif()
          set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}")
        endif()
      endforeach()
    endforeach()
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${target} INTERFACE ${arg_USES} fmt::fmt Threads::Threads)
  endif()
  if(QUIRE_TESTS)
    foreach(source ${sources})
      set(wanted yes)
      if(QUIRE_SANITIZE STREQUAL "thread")
        file(STRINGS ${source} wanted REGEX "std::j?thread|threads = |Service|Server" LIMIT_COUNT 1)
      endif()
      if(wanted AND NOT (arg_UNSHARED AND QUIRE_SANITIZE STREQUAL "thread"))
        quire_side_program(${source} ${target} ${name})
      endif()
    endforeach()
  endif()
endfunction()

# Replaces the files of a list that are compiled together by files that include them: nine each, by names that are the
# same in every clone, which UNITY_BUILD's are not.
function(quire_join files name alone)
  set(result)
  set(together)
  foreach(source ${${files}})
    file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    if(path IN_LIST alone OR path MATCHES "_(avx2|avx512|vnni|bf16)\\.cc$")
      list(APPEND result ${source})
    else()
      list(APPEND together ${path})
    endif()
  endforeach()
  set(number 0)
  while(together)
    list(SUBLIST together 0 9 some)
    list(TRANSFORM some REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN some "" includes)
    set(joined ${CMAKE_BINARY_DIR}/joined/${name}_${number}.cc)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${includes}" @ONLY)
    list(APPEND result ${joined})
    list(LENGTH together left)
    if(left GREATER 9)
      list(SUBLIST together 9 -1 together)
    else()
      set(together)
    endif()
    math(EXPR number "${number} + 1")
  endwhile()
  set(${files} ${result} PARENT_SCOPE)
endfunction()

# A test, fuzzer or benchmark beside the code. Tests run with the source root as their working directory.
function(quire_side_program source target module)
  get_filename_component(stem ${source} NAME_WE)
  if(stem MATCHES "_test$")
    add_executable(${module}_${stem} ${source})
    target_compile_options(${module}_${stem} PRIVATE ${QUIRE_TEST_BUILD})
    target_precompile_headers(${module}_${stem} REUSE_FROM quire_test_headers)
    target_link_libraries(${module}_${stem} PRIVATE ${target} GTest::gtest GTest::gmock GTest::gtest_main)
    add_test(NAME ${module}.${stem} COMMAND ${module}_${stem} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${module}.${stem} PROPERTIES LABELS unit)
    add_dependencies(checks ${module}_${stem})
  elseif(stem MATCHES "_fuzz$")
    # Under clang a libFuzzer binary; under gcc the same entry point replays the corpus and mutates it a little.
    string(REGEX REPLACE "_fuzz$" "" noun ${stem})
    add_executable(${module}_${stem} ${source})
    target_compile_options(${module}_${stem} PRIVATE -Wno-missing-field-initializers)
    target_link_libraries(${module}_${stem} PRIVATE ${target})
    set(corpus ${PROJECT_SOURCE_DIR}/tests/corpus/${noun})
    if(QUIRE_FUZZERS)
      target_compile_options(${module}_${stem} PRIVATE -fsanitize=fuzzer)
      target_link_options(${module}_${stem} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${module}_${stem})
    else()
      target_link_libraries(${module}_${stem} PRIVATE quire_fuzz_main)
      add_test(NAME ${module}.${stem} COMMAND ${module}_${stem} ${corpus} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      set_tests_properties(${module}.${stem} PROPERTIES LABELS fuzz)
      add_dependencies(checks ${module}_${stem})
    endif()
  elseif(stem MATCHES "_bench$")
    add_executable(${module}_${stem} ${source})
    target_link_libraries(${module}_${stem} PRIVATE ${target} benchmark::benchmark_main)
  endif()
endfunction()

# quire_cuda_library(NAME FOLDER) makes one shared object of a folder's .cu files. It is loaded at run time, so the program
# needs neither CUDA nor a driver; without nvcc it is left out, and says so. Nothing contracts: fused multiply-adds stand
# where the source has them.
option(QUIRE_CUDA "build the CUDA kernels where nvcc is found" ON)
# As CMAKE_CUDA_ARCHITECTURES has them. The driver compiles for other GPUs when it first meets them; "80" instead of
# "80-virtual" spares an A100 and its like that, and costs the build a fifth more.
set(QUIRE_CUDA_ARCHS "90a-real;80-virtual" CACHE STRING "GPUs to build CUDA kernels for: Hopper, and any from 8.0 on")
find_program(NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
function(quire_cuda_library name folder)
  if(NOT QUIRE_CUDA OR NOT NVCC OR QUIRE_SANITIZE OR QUIRE_FUZZERS)
    message(STATUS "Without CUDA kernels: --device cuda will be refused (nvcc of CUDA 13 builds them)")
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cu)
  set(code)
  foreach(arch ${QUIRE_CUDA_ARCHS})
    string(REGEX MATCH "^[0-9]+a?" number ${arch})
    if(NOT arch MATCHES "-virtual$")
      list(APPEND code -gencode arch=compute_${number},code=sm_${number})
    endif()
    if(NOT arch MATCHES "-real$")
      list(APPEND code -gencode arch=compute_${number},code=compute_${number})
    endif()
  endforeach()
  set(objects)
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}/${stem}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMENT "CUDA ${stem}.cu"
                       COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/${name}
                       COMMAND ${cuda_launcher} ${NVCC} -std=c++20 -O3 -fmad=false ${code}
                               -I${PROJECT_SOURCE_DIR}/src -Xcompiler -fPIC,-fvisibility=hidden -MD -MF ${object}.d
                               -c ${source} -o ${object})
    list(APPEND objects ${object})
  endforeach()
  set(library ${PROJECT_BINARY_DIR}/lib${name}.so)
  add_custom_command(OUTPUT ${library} DEPENDS ${objects} VERBATIM COMMENT "Linking lib${name}.so"
                     COMMAND ${NVCC} -shared -cudart static -Xlinker -Bsymbolic -o ${library} ${objects} -ldl)
  add_custom_target(${name} ALL DEPENDS ${library})
  install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

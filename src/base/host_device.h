// Marks functions that the host and the GPU share. Empty unless nvcc compiles the file.
#pragma once

#ifdef __CUDACC__
#define QUERN_HD __host__ __device__
#else
#define QUERN_HD
#endif

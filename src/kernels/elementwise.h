// Flat ranges: conversion, addition, scaling, zeroing, and the search for NaN and infinity.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace fivefold::kernels {

// to[i] = from[i]; rounding as from_float.
void convert(const float* from, BFloat16* to, int64_t n, int num_threads);
void convert(const float* from, Float16* to, int64_t n, int num_threads);
void convert(const BFloat16* from, float* to, int64_t n, int num_threads);
void convert(const Float16* from, float* to, int64_t n, int num_threads);

// The same for `rows` rows of `cols` elements that lie `from_stride` and `to_stride` elements apart.
void convert_rows(const Float16* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t cols,
                  int num_threads);
void convert_rows(const float* from, int64_t from_stride, Float16* to, int64_t to_stride, int64_t rows, int64_t cols,
                  int num_threads);

// sum[i] += x[i].
void add_into(const BFloat16* x, float* sum, int64_t n, int num_threads);
void add_into(const Float16* x, float* sum, int64_t n, int num_threads);
void add_into(const float* x, float* sum, int64_t n, int num_threads);

// x[i] *= factor.
void scale(float* x, int64_t n, float factor, int num_threads);
void scale(BFloat16* x, int64_t n, float factor, int num_threads);
void scale(Float16* x, int64_t n, float factor, int num_threads);

void fill_zero(void* data, int64_t bytes, int num_threads);

// How many elements are NaN or infinite.
int64_t count_non_finite(const float* x, int64_t n, int num_threads);
int64_t count_non_finite(const BFloat16* x, int64_t n, int num_threads);
int64_t count_non_finite(const Float16* x, int64_t n, int num_threads);

}  // namespace fivefold::kernels

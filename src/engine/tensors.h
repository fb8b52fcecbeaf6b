// Tensors with a named account, and the bridges between ATen's types and fivefold's.
#pragma once

#include <ATen/ATen.h>

#include "comm/communicator.h"
#include "engine/memory/counting_allocator.h"
#include "kernels/element.h"
#include "spec/enums.h"

namespace fivefold {

inline at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kUint8:
      return at::kByte;
    case DType::kFloat8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kFloat8E5M2:
      return at::kFloat8_e5m2;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt8:
      return at::kChar;
    case DType::kBool:
      return at::kBool;
  }
  FIVEFOLD_CHECK(false);
}

// An uninitialised tensor that counts for `account`.
inline at::Tensor allocate(Account account, at::IntArrayRef sizes, DType dtype) {
  const AccountScope scope(account);
  return at::empty(sizes, at::TensorOptions().dtype(scalar_type(dtype)));
}

inline kernels::ElementType element_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::ElementType::kFloat32;
    case at::kBFloat16:
      return kernels::ElementType::kBFloat16;
    case at::kHalf:
      return kernels::ElementType::kFloat16;
    default:
      FIVEFOLD_CHECK(false, "a tensor of a type that no kernel takes");
  }
}

// Calls f with std::type_identity of the element type of `tensor`.
template <class F>
decltype(auto) visit_dtype(const at::Tensor& tensor, F&& f) {
  return kernels::visit_element(element_type(tensor), std::forward<F>(f));
}

// The same for a tensor whose elements have 16 bits.
template <class F>
decltype(auto) visit_half(const at::Tensor& tensor, F&& f) {
  const kernels::ElementType type = element_type(tensor);
  FIVEFOLD_CHECK(type != kernels::ElementType::kFloat32);
  return type == kernels::ElementType::kBFloat16 ? f(std::type_identity<kernels::BFloat16>{})
                                                 : f(std::type_identity<kernels::Float16>{});
}

// The tensor's elements as T; null for an undefined tensor. REQUIRES: T has the size of the tensor's elements.
template <class T>
T* elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  FIVEFOLD_CHECK(sizeof(T) == tensor.element_size() && tensor.is_contiguous());
  return static_cast<T*>(tensor.data_ptr());
}

inline DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kDouble:
      return DType::kFloat64;
    default:
      FIVEFOLD_CHECK(false, "a tensor of another type in a collective");
  }
}

inline Buffer as_buffer(const at::Tensor& tensor, DType dtype) {
  FIVEFOLD_CHECK(tensor.is_contiguous());
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), dtype, {}};
}

// A gradient's destination: `accumulate` adds to what it holds. Undefined: the gradient is not wanted.
inline kernels::GradTarget grad_target(const at::Tensor& grad, bool accumulate) {
  if (!grad.defined()) return {};
  return {grad.data_ptr(), element_type(grad),
          accumulate ? kernels::Accumulate::kAdd : kernels::Accumulate::kOverwrite};
}

}  // namespace fivefold

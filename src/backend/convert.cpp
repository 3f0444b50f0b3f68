// SPDX-License-Identifier: BSD-3-Clause
#include "backend/convert.hpp"

#include <ATen/EmptyTensor.h>
#include <algorithm>
#include <c10/util/Exception.h>

namespace shmcoll
{

namespace
{

// The dtypes that can be reduced; all others are moved as bytes.
shc_dtype dtypeOf(at::ScalarType dtype)
{
    switch (dtype) {
    case at::kChar:
        return SHC_INT8;
    case at::kShort:
        return SHC_INT16;
    case at::kInt:
        return SHC_INT32;
    case at::kLong:
        return SHC_INT64;
    case at::kByte:
        return SHC_UINT8;
    case at::kUInt16:
        return SHC_UINT16;
    case at::kUInt32:
        return SHC_UINT32;
    case at::kUInt64:
        return SHC_UINT64;
    case at::kBool:
        return SHC_BOOL;
    case at::kHalf:
        return SHC_FLOAT16;
    case at::kBFloat16:
        return SHC_BFLOAT16;
    case at::kFloat8_e4m3fn:
        return SHC_FLOAT8_E4M3FN;
    case at::kFloat8_e5m2:
        return SHC_FLOAT8_E5M2;
    case at::kFloat8_e4m3fnuz:
        return SHC_FLOAT8_E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
        return SHC_FLOAT8_E5M2FNUZ;
    case at::kFloat:
        return SHC_FLOAT32;
    case at::kDouble:
        return SHC_FLOAT64;
    case at::kComplexFloat:
        return SHC_COMPLEX64;
    case at::kComplexDouble:
        return SHC_COMPLEX128;
    default:
        return SHC_OPAQUE;
    }
}

// Fills redop and premul.
void setRedop(shc_op &op, const c10d::ReduceOp &reduceOp)
{
    switch (reduceOp.op_) {
    case c10d::ReduceOp::SUM:
        op.redop = SHC_SUM;
        return;
    case c10d::ReduceOp::AVG:
        op.redop = SHC_AVG;
        return;
    case c10d::ReduceOp::PRODUCT:
        op.redop = SHC_PRODUCT;
        return;
    case c10d::ReduceOp::MIN:
        op.redop = SHC_MIN;
        return;
    case c10d::ReduceOp::MAX:
        op.redop = SHC_MAX;
        return;
    case c10d::ReduceOp::BAND:
        op.redop = SHC_BAND;
        return;
    case c10d::ReduceOp::BOR:
        op.redop = SHC_BOR;
        return;
    case c10d::ReduceOp::BXOR:
        op.redop = SHC_BXOR;
        return;
    case c10d::ReduceOp::PREMUL_SUM:
        break;
    default:
        TORCH_CHECK_VALUE(false, "shmcoll: a reduce op that does not exist");
    }
    const auto *supplement =
        reinterpret_cast<const c10d::NCCLPreMulSumSupplement *>(reduceOp.supplement_.get());
    TORCH_CHECK_VALUE(supplement != nullptr, "shmcoll: PREMUL_SUM without its factor");
    op.redop = SHC_PREMUL_SUM;
    op.premul = supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble()
                                                    : supplement->double_factor;
}

// Has the tensor as much memory as its sizes need? FSDP frees parameters by resizing their storage.
void checkStorage(const at::Tensor &tensor, const char *op)
{
    if (!tensor.has_storage() || tensor.numel() == 0)
        return;
    const size_t has = tensor.storage().nbytes();
    const size_t needs =
        tensor.is_contiguous()
            ? static_cast<size_t>(tensor.storage_offset() + tensor.numel()) * tensor.itemsize()
            : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                               static_cast<size_t>(tensor.storage_offset()));
    TORCH_CHECK_VALUE(needs <= has, "shmcoll: ", op, ": a tensor that needs a storage of ", needs,
                      " bytes, but its storage has ", has,
                      "; it was freed or made smaller (resize_), and must be restored before the "
                      "call");
}

} // namespace

void TensorViews::addOne(const at::Tensor &tensor, const char *op)
{
    TORCH_CHECK_VALUE(tensor.defined(), "shmcoll: ", op, ": an undefined tensor");
    TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), "shmcoll: ", op, ": a tensor on ",
                      tensor.device(), "; CPU and CUDA tensors are possible");
    TORCH_CHECK_VALUE(count_ == 0 || tensor.is_cpu() == onCpu_, "shmcoll: ", op,
                      ": CPU and CUDA tensors in one call");
    onCpu_ = tensor.is_cpu();
    TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "shmcoll: ", op, ": a tensor of layout ",
                     tensor.layout(), "; dense tensors are possible");
    TORCH_CHECK_TYPE(!tensor.is_conj() && !tensor.is_neg(), "shmcoll: ", op,
                     ": a conjugate or negative view; call resolve_conj() or resolve_neg() first");
    checkStorage(tensor, op);
    shc_tensor view{};
    view.data = tensor.data_ptr();
    view.ndim = static_cast<int32_t>(tensor.dim());
    view.sizes = tensor.sizes().data();
    view.strides = tensor.is_contiguous() ? nullptr : tensor.strides().data();
    if (count_ == 0)
        first_ = view;
    else if (count_ == 1)
        rest_.push_back(first_);
    if (count_ > 0)
        rest_.push_back(view);
    count_++;
}

void TensorViews::add(at::TensorList tensors, const char *op)
{
    for (const at::Tensor &tensor : tensors)
        addOne(tensor, op);
}

shc_tensors TensorViews::view() const
{
    return {count_ == 1 ? &first_ : rest_.data(), count_};
}

void setDtype(shc_op &op, at::ScalarType dtype)
{
    op.dtype = dtypeOf(dtype);
    if (op.dtype == SHC_OPAQUE) {
        TORCH_CHECK_TYPE(dtype != at::kQUInt4x2 && dtype != at::kQUInt2x4, "shmcoll: a tensor of ",
                         dtype, " has several elements in a byte; move its int_repr()");
        op.elem_bytes = static_cast<uint32_t>(c10::elementSize(dtype));
        op.dtype_tag = static_cast<uint32_t>(dtype);
    }
}

void setReduceOp(shc_op &op, const c10d::ReduceOp &reduceOp)
{
    setRedop(op, reduceOp);
    // The core would report the same with a number instead of the type's name.
    TORCH_CHECK_TYPE(op.dtype != SHC_OPAQUE, "shmcoll: ", shc_op_kind_name(op.kind), ": ",
                     shc_redop_name(op.redop), " of ",
                     c10::getDtypeNames(static_cast<at::ScalarType>(op.dtype_tag)).first,
                     " does not exist; possible: nothing (it can be moved)");
}

at::ScalarType commonDtype(at::TensorList tensors, const char *op)
{
    TORCH_CHECK_VALUE(!tensors.empty(), "shmcoll: ", op, ": an empty list of tensors");
    at::ScalarType dtype = tensors.front().scalar_type();
    for (const at::Tensor &tensor : tensors)
        TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, "shmcoll: ", op,
                         ": tensors of one call differ in dtype: ", dtype, " and ",
                         tensor.scalar_type());
    return dtype;
}

void checkOutputsApart(at::TensorList outputs, const char *op)
{
    std::vector<std::pair<uintptr_t, size_t>> pieces; // where they begin, and their bytes
    for (const at::Tensor &output : outputs)
        if (output.defined() && output.has_storage() && output.is_non_overlapping_and_dense())
            pieces.emplace_back(reinterpret_cast<uintptr_t>(output.const_data_ptr()),
                                output.nbytes());
    std::sort(pieces.begin(), pieces.end());
    for (size_t i = 1; i < pieces.size(); i++)
        TORCH_CHECK_VALUE(pieces[i - 1].first + pieces[i - 1].second <= pieces[i].first,
                          "shmcoll: ", op,
                          ": two outputs overlap: one would be written over the other");
}

} // namespace shmcoll

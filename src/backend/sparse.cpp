// SPDX-License-Identifier: BSD-3-Clause
#include "backend/sparse.hpp"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <cstdlib>

namespace shmcoll
{

SparseTensor::SparseTensor(const at::Tensor &tensor) : tensor_(tensor)
{
    constexpr const char *op = "sparse all_reduce";
    TORCH_CHECK_TYPE(tensor.layout() == at::kSparse, "shmcoll: all_reduce: a tensor of layout ",
                     tensor.layout(), "; dense and sparse COO tensors are possible");
    TORCH_CHECK_TYPE(tensor.unsafeGetTensorImpl()->allow_tensor_metadata_change(),
                     "shmcoll: all_reduce: a sparse tensor whose entries cannot be replaced");
    at::AutoDispatchBelowADInplaceOrView guard; // entries that autograd knows nothing of
    indices_ = tensor._indices();
    values_ = tensor._values();
    sizes_ = tensor.sizes().vec();
    view_.ndim = static_cast<int32_t>(tensor.dim());
    view_.sparse_ndim = static_cast<int32_t>(tensor.sparse_dim());
    view_.sizes = sizes_.data();
    view_.count = static_cast<uint64_t>(tensor._nnz());
    view_.indices = *TensorViews(indices_, op).view().list;
    view_.values = *TensorViews(values_, op).view().list;
}

SparseTensor::~SparseTensor()
{
    std::free(view_.sum_indices);
    std::free(view_.sum_values);
}

void SparseTensor::storeSum()
{
    c10::InferenceMode mode(tensor_.is_inference());
    at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t count = static_cast<int64_t>(view_.sum_count);
    std::vector<int64_t> valueSizes{count};
    valueSizes.insert(valueSizes.end(), sizes_.begin() + view_.sparse_ndim, sizes_.end());
    at::Tensor indices =
        at::from_blob(std::exchange(view_.sum_indices, nullptr),
                      {static_cast<int64_t>(view_.sparse_ndim), count}, std::free, at::kLong);
    at::Tensor values = at::from_blob(std::exchange(view_.sum_values, nullptr), valueSizes,
                                      std::free, values_.scalar_type());
    auto *impl = static_cast<at::SparseTensorImpl *>(tensor_.unsafeGetTensorImpl());
    impl->set_indices_and_values_unsafe(indices, values);
    impl->set_coalesced(true);
}

} // namespace shmcoll

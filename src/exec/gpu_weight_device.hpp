#pragma once
/// GPUs as the place where weights become codes and scales.

#include <future>
#include <memory>
#include <vector>

#include "core/weight_device.hpp"

namespace glu_ckpt {

/// Takes GPUs by index, at least one; places are on them in rotation, each with a stream and a page-locked buffer of
/// its own, which are kept for the next caller. They use up to `device_memory_bytes` of a GPU together. Until the GPUs
/// are `opened` there is no place to take, and what that throws, take_place() throws; without it they are open.
std::shared_ptr<WeightDevice> make_gpu_weight_device(const std::vector<int>& devices, i64 device_memory_bytes,
                                                     std::shared_future<void> opened = {});

}  // namespace glu_ckpt

#pragma once
/// The conversion of a checkpoint that is in memory: a state dict, whose tensors are in host memory or on GPUs. It is
/// recognized, planned, proved and refused as files are, and its bytes go from tensor to tensor.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"
#include "glu_ckpt/plan.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

/// One entry of a state dict. Without an address the tensor is only described, which is enough for plans that no
/// element decides about.
struct NamedTensor {
  std::string name;
  TensorView view;
};

/// The facts that a checkpoint in files has beside its tensors.
struct StateFacts {
  /// The text of a config.json; empty: there is none.
  std::string config;
  /// As glu_ckpt.json records it.
  Record record;
  /// The numbers, in the whole model, of the first expert and layer of these tensors, where they are one rank's part.
  /// Keys that count through the whole model, as the hub's do, begin with them in the state dict and in what it
  /// becomes; those of Megatron's modules begin with 0.
  i64 first_expert = 0;
  i64 first_layer = 0;
};

/// An output that is an input under another name, or under its own: it needs no copy.
struct Renamed {
  std::size_t output = 0;
  std::size_t input = 0;
};

struct StateRun {
  /// Threads of the CPU; 0: one per core that this process may run on.
  int jobs = 0;
  /// The stream that work on GPUs is queued on.
  GpuStream stream = nullptr;
};

/// Returns the digest that digest() finds of the file that holds these tensors. Reads all of them. Throws what digest()
/// throws, and Usage as StatePlan does.
Digest digest_state(std::span<const NamedTensor> tensors, const StateFacts& facts, const SourceAnswers& answers = {},
                    const RunOptions& run = {});

/// A plan for state dicts of these names, dtypes and shapes. It is made once and run as often as values change.
class StatePlan {
 public:
  /// Plans as convert() does for a checkpoint of these tensors, and throws what it throws before it writes. Options
  /// about files (format, shards, proof) mean nothing here. Where the tensors have addresses, the elements that decide
  /// are read: tensors that should repeat others, biases that may be idle, master weights. Throws Usage for two tensors
  /// of one name, and for one that is not contiguous.
  StatePlan(std::span<const NamedTensor> tensors, const StateFacts& facts, const ConvertOptions& options,
            const RunOptions& run = {});
  ~StatePlan();
  StatePlan(StatePlan&&) noexcept;
  StatePlan& operator=(StatePlan&&) noexcept;

  /// Its tensors are numbered as the span above; its shards and places in files mean nothing.
  const Plan& plan() const;
  const std::vector<Renamed>& renamed() const;
  /// The names of tensors that go nowhere.
  std::vector<std::string> dropped() const;
  /// Returns the first input that goes into an output: memory for the output is as that tensor's, of the same library
  /// and on the same device.
  std::size_t first_input(std::size_t output) const;

  /// Fills `out`, by the numbers of Plan::outputs, from `in`, by those of the planned tensors; an output without an
  /// address is not made. It trusts that the elements which decided about the plan decide as they did. What goes into
  /// one output has to be on its device. On a GPU the call is asynchronous on the stream, and a graph can capture it,
  /// unless weights are decoded or computed. Codes on a GPU are decoded there, where its kernels know their grids;
  /// their scales are read first, since none may be NaN. Calls of one plan must not overlap. Throws Usage for tensors
  /// of other shapes, dtypes or devices, and for an output that overlaps an input; an output may be the input that it
  /// renames.
  void run(std::span<const TensorView> in, std::span<const TensorView> out, const StateRun& run = {}) const;

  /// Says in JSON which bytes go where, for whoever moves them by means of their own.
  std::string to_json() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glu_ckpt

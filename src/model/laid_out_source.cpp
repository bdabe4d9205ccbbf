#include "model/laid_out_source.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "arch/recognize_model.hpp"
#include "core/compute.hpp"
#include "core/fail.hpp"
#include "core/kept.hpp"
#include "exec/host_buffer.hpp"
#include "exec/range_reader.hpp"
#include "families/architecture.hpp"
#include "format/checkpoint_files.hpp"
#include "glu_ckpt/plan.hpp"
#include "model/former_model.hpp"
#include "model/locate_errors.hpp"
#include "model/saved_arguments.hpp"
#include "model/settle_copies.hpp"
#include "model/stored_model.hpp"

namespace glu_ckpt {
namespace {

/// Windows of the source that one read holds.
constexpr i64 kScratchBytes = i64{8} << 20;
/// Bytes of tensors of the source that are kept whole, and runs so short that this is worth it.
constexpr i64 kKeptSources = i64{128} << 20, kShortRun = 256;

/// The outputs of a plan as tensors.
class LaidOutSource final : public Source {
 public:
  LaidOutSource(std::unique_ptr<Source> stored, Plan plan, CheckpointInfo info, Constants constants = {},
                bool keeps_sources = false)
      : stored_(std::move(stored)),
        plan_(std::move(plan)),
        info_(std::move(info)),
        constants_(std::move(constants)),
        keeps_sources_(keeps_sources),
        backend_(make_backend("cpu")) {
    info_.inventory = {{}, stored_->inventory().files, false};
    for (const OutputTensor& output : plan_.outputs)
      info_.inventory.tensors.push_back({output.name, output.dtype, output.shape, output.bytes, 0, 0});
  }

  const CheckpointInfo& info() const override { return info_; }

  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    for (const std::span<std::byte> piece : pieces) {
      read_one(tensor, offset, piece);
      offset += std::ssize(piece);
    }
  }

  bool may_have_read_nan_or_infinity() const override { return stored_->may_have_read_nan_or_infinity(); }
  bool is_cheap_in_parts() const override { return stored_->is_cheap_in_parts(); }
  const ContentCheck* content_check() const override { return stored_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }
  void compute_on(const std::weak_ptr<WeightDevice>& device) override { stored_->compute_on(device); }

 private:
  void read_one(std::size_t tensor, i64 offset, std::span<std::byte> out) const {
    const auto computed = std::ranges::lower_bound(plan_.computes, tensor, {}, &Compute::dst);
    if (computed != plan_.computes.end() && computed->dst == tensor) return compute_one(*computed, offset, out);
    if (const auto constant = constants_.find(tensor); constant != constants_.end()) {
      std::ranges::copy(std::span(constant->second).subspan(static_cast<std::size_t>(offset), out.size()), out.begin());
      return;
    }
    std::ranges::fill(out, std::byte{0});
    const std::size_t first = plan_.first_move[tensor], end = plan_.first_move[tensor + 1];
    if (keeps_sources_ && std::ranges::any_of(std::span(plan_.moves).subspan(first, end - first),
                                              [](const Move& move) { return move.run_bytes < kShortRun; })) {
      for (std::size_t i = first; i < end; ++i) copy_runs(plan_.moves[i], offset, out);
      return;
    }
    RangeReader reader(*stored_);
    HostBuffer scratch;
    gather(std::span(plan_.moves).subspan(first, end - first), reader, *backend_, offset, offset + std::ssize(out),
           out.data(), scratch, kScratchBytes);
  }

  /// Copies the runs of a move that are within the output's bytes [offset, offset + out.size()) from a tensor that is
  /// kept whole: where several outputs have every so many columns of it, each would read nearly all of it.
  void copy_runs(const Move& move, i64 offset, std::span<std::byte> out) const {
    const i64 end = offset + std::ssize(out);
    i64 last = move.dst_offset + move.run_bytes;
    for (const MoveDim& dim : move.dims) last += (dim.count - 1) * dim.dst_step;
    if (last <= offset || move.dst_offset >= end) return;
    const auto kept = sources_.get(move.src, [&] {
      KeptBytes whole{std::vector<std::byte>(static_cast<std::size_t>(stored_->inventory().tensors[move.src].bytes))};
      stored_->read(move.src, 0, whole.data);
      return whole;
    });
    const auto& [d0, d1, d2, d3] = move.dims;
    for (i64 a = 0; a < d0.count; ++a)
      for (i64 b = 0; b < d1.count; ++b)
        for (i64 c = 0; c < d2.count; ++c) {
          i64 from = move.src_offset + a * d0.src_step + b * d1.src_step + c * d2.src_step;
          i64 to = move.dst_offset + a * d0.dst_step + b * d1.dst_step + c * d2.dst_step;
          for (i64 d = 0; d < d3.count; ++d, from += d3.src_step, to += d3.dst_step) {
            const i64 begin = std::max(to, offset), stop = std::min(to + move.run_bytes, end);
            if (begin < stop)
              std::memcpy(out.data() + (begin - offset), kept->data.data() + from + (begin - to),
                          static_cast<std::size_t>(stop - begin));
          }
        }
  }

  /// Elements are computed whole: those of which `out` has a part, too.
  void compute_one(const Compute& row, i64 offset, std::span<std::byte> out) const {
    const TensorRef& from = stored_->inventory().tensors[row.src];
    const Dtype to = plan_.outputs[row.dst].dtype;
    const i64 size = dtype_bits(to) / 8, from_size = dtype_bits(from.dtype) / 8;
    const i64 begin = offset / size, end = (offset + std::ssize(out) + size - 1) / size;
    std::vector<std::byte> in(static_cast<std::size_t>((end - begin) * from_size));
    std::vector<std::byte> made(static_cast<std::size_t>((end - begin) * size));
    stored_->read(row.src, begin * from_size, in);
    compute(row.op, from.dtype, in, to, made);
    std::memcpy(out.data(), made.data() + (offset - begin * size), out.size());
  }

  std::unique_ptr<Source> stored_;
  Plan plan_;
  CheckpointInfo info_;
  Constants constants_;
  /// Tensors of the source stay in memory for the next output.
  bool keeps_sources_ = false;
  mutable Kept<KeptBytes> sources_{kKeptSources};
  std::unique_ptr<Backend> backend_;
};

bool is_apart(const ExpertBlock& block) {
  const bool is_split = block.glu.kind == Glu::Kind::Split || block.glu.kind == Glu::Kind::None;
  return is_split && block.experts == Experts::Indexed && block.axes == Axes::OutIn;
}

TargetAnswers apart_answers(const Recognition& model) {
  TargetAnswers to;
  const Family& family = *model.architecture->family;
  if (!is_hub_form(model))
    to.naming = family.has_experts() ? std::string(family.expert_naming) : "hf:" + model.architecture->model_type;
  if (model.blocks.empty()) return to;
  const auto has_gates = [&](ExpertSet set) {
    return std::ranges::any_of(
        model.blocks, [&](const ExpertBlock& block) { return block.set == set && block.glu.kind != Glu::Kind::None; });
  };
  to.experts = to.bias_experts = Experts::Indexed;
  if (has_gates(ExpertSet::Routed)) to.glu = Glu{Glu::Kind::Split, 0};
  if (has_gates(ExpertSet::Shared)) to.shared_glu = Glu{Glu::Kind::Split, 0};
  return to;
}

/// The info of the model in a directory for Hugging Face's programs.
CheckpointInfo info_as_hub(const Checkpoint& checkpoint) {
  CheckpointInfo info = checkpoint.source->info();
  const LayoutAnswers& layout = checkpoint.recognition.layout;
  info.hints = checkpoint.hints;
  for (const char* key : {"naming", "experts", "glu", "shared_glu", "digest", "source_digest"}) info.record.erase(key);
  // The first of several steps sees the layout that the files have; a later one sees that of the step before.
  if (info.laid_out_from.empty()) {
    info.laid_out_from = {{"naming", layout.naming}, {"experts", layout.experts}, {"glu", to_string(layout.glu)}};
    if (layout.shared_glu) info.laid_out_from["shared_glu"] = to_string(*layout.shared_glu);
  }
  if (is_hub_form(checkpoint.recognition)) return info;
  // The files that hold it are none of the hub's.
  if (const std::vector<std::string> states = optimizer_part_texts(*checkpoint.source); !states.empty())
    info.laid_out_from["optimizer"] = states.front();
  std::erase_if(info.record, [](const auto& entry) { return entry.first.starts_with("hf_"); });
  std::erase_if(info.extra_files, [](const ExtraFile& file) { return name_in_hf(file.name).empty(); });
  for (ExtraFile& file : info.extra_files) file.name = std::string(name_in_hf(file.name));
  info.structure = {};
  info.format = Format::Safetensors;
  return info;
}

}  // namespace

bool is_hub_form(const Recognition& model) {
  return model.dense_naming == &model.architecture->family->naming && !model.in_memory;
}

void lay_out_apart(std::unique_ptr<Source>& source, const ModelHints& hints, const Recognition& model) {
  if (is_hub_form(model) && std::ranges::all_of(model.blocks, is_apart)) return;
  Checkpoint checkpoint{std::move(source), model, hints};
  try {
    const Source& stored = *checkpoint.source;
    Plan plan = locate_errors(stored, [&] {
      require_all_arguments(stored.inventory(), checkpoint.hints, checkpoint.recognition);
      settle_idle(checkpoint);
      take_as_own(find_unlike_copies({}, *checkpoint.source, checkpoint.recognition.copies), stored.inventory(),
                  checkpoint.recognition);
      PlanOptions options{apart_answers(checkpoint.recognition),
                          former_model(stored.record(), hints, checkpoint.recognition)};
      options.force = true;
      Plan made = make_plan(stored.inventory(), checkpoint.recognition, options);
      check_plan(stored.inventory(), made);
      return made;
    });
    CheckpointInfo info = info_as_hub(checkpoint);
    source = std::make_unique<LaidOutSource>(std::move(checkpoint.source), std::move(plan), std::move(info));
  } catch (const Error&) {
    source = std::move(checkpoint.source);
    throw;
  }
}

SourceAnswers answers_about(const Source& source, SourceAnswers answers) {
  if (source.info().laid_out_from.empty()) return answers;
  answers.naming.reset();
  answers.glu.reset();
  answers.shared_glu.reset();
  return answers;
}

Recognition recognize_source(const Source& source, const ModelHints& hints, const SourceAnswers& answers) {
  return recognize_model(source.inventory(), hints, source.record(), answers_about(source, answers));
}

std::unique_ptr<Source> lay_out_source(std::unique_ptr<Source> stored, Plan plan, CheckpointInfo info,
                                       Constants constants) {
  return std::make_unique<LaidOutSource>(std::move(stored), std::move(plan), std::move(info), std::move(constants),
                                         true);
}

}  // namespace glu_ckpt

#include "model/unwrapped_source.hpp"

#include <fmt/format.h>

#include <utility>

#include "arch/model_view.hpp"

namespace glu_ckpt {
namespace {

class UnwrappedSource final : public Source {
 public:
  UnwrappedSource(std::unique_ptr<Source> stored, CheckpointInfo info)
      : stored_(std::move(stored)), info_(std::move(info)) {}

  const CheckpointInfo& info() const override { return info_; }
  void read_scattered(std::size_t tensor, i64 offset, std::span<const std::span<std::byte>> pieces) const override {
    stored_->read_scattered(tensor, offset, pieces);
  }
  const ContentCheck* content_check() const override { return stored_->content_check(); }
  const FileBacked* file_backed() const override { return stored_->file_backed(); }

 private:
  std::unique_ptr<Source> stored_;
  CheckpointInfo info_;
};

}  // namespace

std::unique_ptr<Source> take_off_wrapper_words(std::unique_ptr<Source> source) {
  if (!has_wrapper_words(source->inventory())) return source;
  CheckpointInfo info = source->info();
  const std::string first = take_off_wrapper_words(info.inventory, info.hints);
  if (first.empty()) return source;
  info.respelled = true;
  info.warnings.push_back(
      fmt::format("'{}': keys have words in them that torch.compile, FSDP, activation checkpointing or DDP put there, "
                  "and programs look for keys without them; what glu-ckpt reads and writes is without them",
                  first));
  return std::make_unique<UnwrappedSource>(std::move(source), std::move(info));
}

}  // namespace glu_ckpt

#pragma once
/// The checks of two checkpoints that are read as one.

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

class BothChecks final : public ContentCheck {
 public:
  BothChecks() = default;
  BothChecks(const Source& first, const Source& second)
      : first_(first.content_check()), second_(second.content_check()) {}

  /// Returns the check of both, or of the one that has one; null where neither has.
  const ContentCheck* get() const { return first_ != nullptr && second_ != nullptr ? this : any(); }

  i64 bytes() const override { return first_->bytes() + second_->bytes(); }
  void watch() const override {
    first_->watch();
    second_->watch();
  }
  void run(int jobs, const std::function<void(i64)>& on_progress) const override {
    first_->run(jobs, on_progress);
    second_->run(jobs, on_progress);
  }

 private:
  const ContentCheck* any() const { return first_ != nullptr ? first_ : second_; }

  const ContentCheck* first_ = nullptr;
  const ContentCheck* second_ = nullptr;
};

}  // namespace glu_ckpt

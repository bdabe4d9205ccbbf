#pragma once
/// The part that sources over another source share: who owns the other one, and what it is asked.

#include <memory>
#include <utility>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// A Source that makes its tensors of another one's. It is made before it owns that, so that a failure on the way
/// leaves the other source where it was. No byte of it is a byte of a file.
class WrappedSource : public Source {
 public:
  void own(std::unique_ptr<Source> source) { stored_ = std::move(source); }

  const CheckpointInfo& info() const override { return info_; }
  bool may_have_read_nan_or_infinity() const override { return stored_->may_have_read_nan_or_infinity(); }
  const ContentCheck* content_check() const override { return stored_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }

 protected:
  explicit WrappedSource(CheckpointInfo info) : info_(std::move(info)) {}
  const Source& stored() const { return *stored_; }

  CheckpointInfo info_;

 private:
  std::unique_ptr<Source> stored_;
};

}  // namespace glu_ckpt

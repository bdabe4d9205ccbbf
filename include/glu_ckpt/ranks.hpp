#pragma once
/// The processes that share one conversion. Rank 0 plans, creates the output and commits it; all write.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Functions that all ranks call together (broadcast, gather, restart) are called by one thread of each, in one order,
/// while no other thread of that rank is inside this object. The others may be called by any thread at any time.
/// A failure between the processes, such as a rank that is gone, ends all of them: no function here throws for it.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns rank 0's bytes at every rank.
  virtual std::vector<std::byte> broadcast(std::vector<std::byte> bytes) = 0;
  /// Returns every rank's bytes at rank 0, by rank; nothing elsewhere.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) = 0;
  /// Returns the numbers 0, 1, 2, ..., each to one caller among all threads of all ranks; -1 once any rank has called
  /// stop().
  virtual i64 take() = 0;
  /// take() begins at 0 again, and a stop() is forgotten. Called by all ranks together.
  virtual void restart() = 0;
  /// Makes take() return -1 everywhere from now on.
  virtual void stop() = 0;
  /// Returns whether any rank has called stop(). It is cheap, so that it can be asked before every task, and up to a
  /// fifth of a second late about other ranks.
  virtual bool stopped() = 0;
};

/// A process by itself.
std::unique_ptr<Ranks> make_single_rank();

/// A failure of one rank, thrown at all of them: whatever a failure means for the output, it means on each.
class RankError : public Error {
 public:
  RankError(int rank, const Error& error) : Error(error), rank_(rank) {}
  /// The rank where it happened, which reports it.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// Runs `step` on this rank while the others, which all make this call, run theirs. Where one fails the others are told
/// to stop and, once all have ended, all throw the same RankError: the lowest rank's, but no Interrupted one where
/// another rank has failed. A process by itself throws what `step` threw. A step may use take(), stop() and stopped(),
/// but nothing that all ranks call together: the others would wait for a rank that has failed.
void together(Ranks& ranks, const std::function<void()>& step);

/// Runs `step` at rank 0 alone, as a step of all.
void at_first_rank(Ranks& ranks, const std::function<void()>& step);

}  // namespace glu_ckpt

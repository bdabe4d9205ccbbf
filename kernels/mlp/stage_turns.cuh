#pragma once
/// The stages of shared memory that loads go through, and how the two warpgroups of a block take turns with them. Of
/// the instructions it needs barriers alone, so that tests without a GPU run it in orders that a GPU seldom takes.

#include "kernels/grouped_gemm/sm90_ptx.cuh"

namespace glu_ckpt {

constexpr int kWarpgroup = 128;

/// One of the stages that loads go through in turn, and the parity of its phase.
template <int kStages>
struct PipelineStage {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  /// Skips stages that another warpgroup uses.
  __device__ void skip(int stages) {
    parity ^= static_cast<uint32_t>((stage + stages) / kStages % 2);
    stage = (stage + stages) % kStages;
  }
};

namespace sm90 {

/// The blocks of a cluster, and the warpgroups of a block that multiply.
inline constexpr int kCluster = 2;
inline constexpr int kConsumers = 2;

/// The loading thread's side of the stages.
template <typename SharedType>
class StageFiller {
 public:
  __device__ explicit StageFiller(SharedType& shared) : shared_(shared) {}

  /// Waits for the next stage, and announces the bytes that will come.
  __device__ std::byte* next(int bytes) {
    wait_for_empty();
    barrier_expect(full(), static_cast<uint32_t>(bytes));
    return shared_.stages[filled_];
  }
  /// The barrier of the stage that next() returned.
  __device__ uint64_t* full() const { return &shared_.full[filled_]; }

  /// A block must not end while the other block's copies and arrivals are still to come.
  __device__ void finish() {
    for (int i = 0; i < SharedType::kStages; ++i) wait_for_empty();
  }

 private:
  __device__ void wait_for_empty() {
    barrier_wait(&shared_.empty[pipeline_.stage], pipeline_.parity ^ 1);
    filled_ = pipeline_.stage;
    pipeline_.next();
  }

  SharedType& shared_;
  PipelineStage<SharedType::kStages> pipeline_;
  int filled_ = 0;
};

/// Whose turn it is. A turn ends when all warps of the warpgroup have left it. One of them would not do: a tile without
/// steps does not hold the warps together, and one that lags would miss a phase, and wait for ever.
class Turns {
 public:
  __device__ void init() {
    for (uint64_t& barrier : left_to_) barrier_init(&barrier, kWarpgroup / 32);
  }
  __device__ void wait(int group, uint32_t parity) { barrier_wait(&left_to_[group], parity); }
  /// One lane of each warp calls it.
  __device__ void leave(int group) { barrier_arrive(&left_to_[1 - group]); }

 private:
  uint64_t left_to_[kConsumers];
};

/// Walks a warpgroup through the stages, and takes its turns with the tensor cores.
template <typename SharedType, typename WorkerType>
class PingPong {
 public:
  /// The first warpgroup need not wait the first time.
  __device__ PingPong(SharedType& shared, const WorkerType& worker)
      : shared_(shared), worker_(worker), turn_parity_(worker.group == 0 ? 1 : 0) {}

  /// Skips `steps_before` stages, which are those of the other warpgroup's tile before this one; calls `multiply` with
  /// each stage of this one and its step, and gives the stages back. There is at least one. The sums are complete on
  /// return. `meanwhile` is called while the last products are made: a look into memory that begins there costs no
  /// time.
  template <typename Meanwhile, typename Multiply>
  __device__ void take_turn(int steps_before, int steps, const Meanwhile& meanwhile, const Multiply& multiply) {
    begin_turn(steps_before);
    const auto take = [&](int step) {
      barrier_wait(&shared_.full[pipeline_.stage], pipeline_.parity);
      multiply(shared_.stages[pipeline_.stage], step);
      mma_commit();
      return pipeline_.stage;
    };
    // The first products do not add to what the sums were. In a loop of all steps the compiler would not see that, and
    // would keep the sums' registers while the results of the tile before leave.
    int last = take(0);
    pipeline_.next();
    for (int step = 1; step < steps; ++step, pipeline_.next()) {
      const int taken = take(step);
      // The step before has ended once this one alone is under way.
      mma_wait<1>();
      worker_.release(shared_, last);
      last = taken;
    }
    leave_turn(meanwhile);
    mma_wait<0>();
    worker_.release(shared_, last);
  }

  /// The turn of a tile without steps.
  template <typename Meanwhile>
  __device__ void pass_turn(int steps_before, const Meanwhile& meanwhile) {
    begin_turn(steps_before);
    leave_turn(meanwhile);
  }

 private:
  __device__ void begin_turn(int steps_before) {
    pipeline_.skip(steps_before);
    shared_.turns.wait(worker_.group, turn_parity_);
    turn_parity_ ^= 1;
  }
  /// The other warpgroup's first products queue behind the last ones of this.
  template <typename Meanwhile>
  __device__ void leave_turn(const Meanwhile& meanwhile) {
    if (worker_.lane == 0) shared_.turns.leave(worker_.group);
    meanwhile();
  }

  SharedType& shared_;
  const WorkerType& worker_;
  PipelineStage<SharedType::kStages> pipeline_;
  uint32_t turn_parity_;
};

}  // namespace sm90
}  // namespace glu_ckpt

/// Whole conversions beside cp(1) of the same bytes and a plain write of them, in turn.

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "bench/bench.hpp"
#include "core/fail.hpp"
#include "format/staged_output.hpp"
#include "glu_ckpt/convert.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 3;
constexpr i64 kWriteBytes = i64{4} << 20;
/// Experts of Qwen3-30B, 9.4 MB each, and for small sizes little ones.
constexpr i64 kHidden = 2048, kWidth = 768, kSmallHidden = 256, kSmallWidth = 64;
constexpr i64 kLargestSmall = i64{64} << 20;
constexpr i64 kMostExperts = 64;

/// A directory of its own, gone with all that is in it however the command ends.
class ScratchDir {
 public:
  explicit ScratchDir(const fs::path& parent) {
    if (!fs::is_directory(parent))
      fail(ErrorCode::NotFound, {parent.string(), {}}, "{}: there is no such directory", parent.string());
    std::string name = (parent / "glu-ckpt-bench.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_errno(errno, "create", name);
    path_ = name;
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() { (void)remove_own(path_, Own::MadeHere); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Another program, with this one's stderr; ended if it is not waited for.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> words) : name_(words.front()) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int error = ::posix_spawnp(&pid_, name_.c_str(), nullptr, nullptr, arguments.data(), environ);
    if (error != 0) fail_errno(error, "start", name_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (ended_) return;
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }

  /// Throws Io where it fails, and what `stop_if_asked` throws.
  void wait(const std::function<void()>& stop_if_asked) {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
      if (errno != EINTR) fail_errno(errno, "wait for", name_);
      stop_if_asked();
    }
    ended_ = true;
    stop_if_asked();
    if (status != 0) fail(ErrorCode::Io, {}, "{}: failed; what it said is above", name_);
  }

 private:
  std::string name_;
  pid_t pid_ = 0;
  bool ended_ = false;
};

/// Layers of experts as Hugging Face names them, of about so many bytes: at least one layer of one expert.
std::vector<OutputTensor> bench_tensors(i64 bytes) {
  const bool small = bytes < kLargestSmall;
  const i64 hidden = small ? kSmallHidden : kHidden, width = small ? kSmallWidth : kWidth;
  const i64 experts = std::max<i64>(1, bytes / (6 * hidden * width));
  const i64 layers = (experts + kMostExperts - 1) / kMostExperts;
  std::vector<OutputTensor> tensors;
  i64 offset = 0;
  const auto add = [&](const std::string& name, const std::vector<i64>& shape) {
    tensors.push_back({name, Dtype::BF16, shape, 2 * shape[0] * shape[1], 0, offset});
    offset += tensors.back().bytes;
  };
  for (i64 layer = 0; layer < layers; ++layer)
    for (i64 e = 0; e < experts / layers; ++e) {
      const std::string expert = fmt::format("model.layers.{}.mlp.experts.{}.", layer, e);
      add(expert + "gate_proj.weight", {width, hidden});
      add(expert + "up_proj.weight", {width, hidden});
      add(expert + "down_proj.weight", {hidden, width});
    }
  return tensors;
}

/// Bits that no filesystem can compress, the same ones each time.
void fill(std::span<std::byte> bytes, u64 seed) {
  u64 state = seed;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const u64 word = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

/// One benchmark: a source in a directory of its own, and the ways to write its bytes again.
class BenchedCheckpoint {
 public:
  BenchedCheckpoint(const std::string& dir, i64 wanted_bytes, const RunOptions& run) : run_(run), dir_(dir) {
    const std::vector<OutputTensor> tensors = bench_tensors(wanted_bytes);
    const auto sink = create_output({source_path(), {}, {}, false, {}, {}, Format::Safetensors}, tensors);
    std::vector<std::byte> bytes;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      bytes.resize(static_cast<std::size_t>(tensors[t].bytes));
      fill(bytes, t);
      sink->write(t, 0, bytes);
      stop_if_asked();
    }
    sink->finish({});
    sink->commit();
    file_bytes_ = File::open_read(source_file()).size();
  }

  i64 file_bytes() const { return file_bytes_; }

  double convert(const std::string& naming, const Glu& glu) const {
    ConvertOptions options;
    options.from.naming = "hf:qwen3_moe";
    options.to.naming = naming;
    options.to.experts = Experts::Grouped;
    options.to.glu = glu;
    // The comparison is with copies, so bytes have to be moved.
    options.reflink = Reflink::Never;
    RunOptions run = run_;
    run.device = "cpu";
    return timed([&] { (void)glu_ckpt::convert(source_path(), target_path(), options, run); });
  }

  double copy() const {
    return timed([&] {
      ChildProcess({"cp", "--reflink=never", "--", source_file().string(), target_path().string()}).wait([&] {
        stop_if_asked();
      });
      File::open_read(target_path()).sync();
    });
  }

  double write() const {
    std::vector<std::byte> buffer(static_cast<std::size_t>(kWriteBytes));
    fill(buffer, 1);
    return timed([&] {
      const File to = File::create(target_path());
      for_pieces(kWriteBytes, [&](i64 at, std::size_t bytes) { to.pwrite_exact({buffer.data(), bytes}, at); });
      to.sync();
    });
  }

 private:
  void stop_if_asked() const {
    if (run_.stop != nullptr) run_.stop->check();
  }

  fs::path source_path() const { return dir_.path() / "source"; }
  fs::path source_file() const { return source_path() / "model.safetensors"; }
  fs::path target_path() const { return dir_.path() / "target"; }

  template <typename Work>
  void for_pieces(i64 piece_bytes, const Work& work) const {
    for (i64 at = 0; at < file_bytes_; at += piece_bytes) {
      const i64 bytes = std::min(piece_bytes, file_bytes_ - at);
      work(at, static_cast<std::size_t>(bytes));
      stop_if_asked();
    }
  }

  /// Seconds of `work`, whose target is gone afterwards.
  template <typename Work>
  double timed(const Work& work) const {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (const int error = remove_own(target_path(), Own::MadeHere); error != 0)
      fail_errno(error, "remove", target_path());
    return seconds.count();
  }

  const RunOptions& run_;
  ScratchDir dir_;
  i64 file_bytes_ = 0;
};

double median_seconds(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

ConvertBench bench_convert(const std::string& dir, i64 bytes, const RunOptions& run) {
  const BenchedCheckpoint bench(dir, bytes, run);
  std::vector<double> blocks, transposed, copies, writes;
  for (int round = 0; round < kRounds; ++round) {
    copies.push_back(bench.copy());
    blocks.push_back(bench.convert("megatron", parse_glu("interleaved:32")));
    writes.push_back(bench.write());
    transposed.push_back(bench.convert("hf:gpt_oss", parse_glu("interleaved:1")));
  }
  ConvertBench result{dir, bench.file_bytes(), run.jobs, kRounds, median_seconds(copies), median_seconds(writes), {}};
  result.conversions = {{"hf:qwen3_moe to megatron, grouped, interleaved:32", median_seconds(blocks)},
                        {"hf:qwen3_moe to hf:gpt_oss, every element transposed", median_seconds(transposed)}};
  return result;
}

}  // namespace glu_ckpt

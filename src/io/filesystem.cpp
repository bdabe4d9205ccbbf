#include "io/filesystem.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/page_bytes.hpp"
#include "io/system_calls.hpp"

namespace glu_ckpt {
namespace {

struct Magic {
  long number;
  const char* name;
};

/// linux/magic.h, and the numbers that network filesystems give themselves.
constexpr Magic kMagics[] = {
    {0xef53, "ext4"},    {0x58465342, "xfs"},    {0x9123683e, "btrfs"}, {0x01021994, "tmpfs"},
    {0x6969, "nfs"},     {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},  {0x794c7630, "overlayfs"},
    {0x2fc12fc1, "zfs"}, {0x65735546, "fuse"},   {0x00c36400, "ceph"},  {0x19830326, "beegfs"},
    {0x01021997, "9p"},  {0x4d44, "vfat"},       {0xf2f52010, "f2fs"},  {0xff534d42, "cifs"},
};

/// A file for a trial, gone once it is closed: one without a name or, as NFS and most file systems in user space have
/// none of those, one whose name is removed at once. Not open where the directory cannot be written to.
File trial_file(const std::filesystem::path& directory, bool direct) {
  File file = File::unnamed(directory, direct);
  if (file.is_open() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  static std::atomic<int> number = 0;
  const auto path = directory / fmt::format(".glu_ckpt.trial.{}.{}", ::getpid(), ++number);
  try {
    file = File::try_create(path);
    if (!file.is_open()) return file;
    if (direct) file = File::open_direct(path);
  } catch (const Error&) {
    file = {};
  }
  (void)remove_own(path, Own::MadeHere);
  return file;
}

}  // namespace

FilesystemInfo filesystem_of(const std::filesystem::path& path) {
  std::filesystem::path at = std::filesystem::absolute(path);
  while (!path_exists(at) && at.has_relative_path()) at = at.parent_path();
  struct statfs stat {};
  if (system_calls().statfs(at.c_str(), &stat) != 0) fail_errno(errno, "look at the filesystem of", at);
  FilesystemInfo info;
  info.type = fmt::format("{:#x}", static_cast<unsigned long>(stat.f_type));
  for (const Magic& magic : kMagics)
    if (magic.number == stat.f_type) info.type = magic.name;
  info.free_bytes = static_cast<i64>(stat.f_bavail) * static_cast<i64>(stat.f_bsize);
  info.total_bytes = static_cast<i64>(stat.f_blocks) * static_cast<i64>(stat.f_bsize);
  info.block_bytes = static_cast<i64>(stat.f_bsize);
  return info;
}

IoAbilities io_abilities(const std::filesystem::path& directory) {
  constexpr i64 kClonedBytes = i64{64} << 10;
  IoAbilities abilities;
  const File from = trial_file(directory, false), to = trial_file(directory, false);
  if (!from.is_open() || !to.is_open()) return abilities;
  abilities.known = true;
  abilities.direct = trial_file(directory, true).is_open();
  abilities.locks = from.try_lock() == LockResult::Locked;
  try {
    from.pwrite_exact(std::vector<std::byte>(kClonedBytes), 0);
    abilities.clones = to.try_clone_from(from, 0, 0, kClonedBytes);
  } catch (const Error&) {
    abilities.clones = false;
  }
  return abilities;
}

std::optional<WriteRates> measure_writes(const std::filesystem::path& directory, int threads) {
  constexpr i64 kPiece = i64{4} << 20, kOfThread = i64{32} << 20;
  constexpr int kMostThreads = 16;
  const int writers = std::clamp(threads, 2, kMostThreads);
  const FilesystemInfo filesystem = filesystem_of(directory);
  if (filesystem.free_bytes < 8 * writers * kOfThread) return std::nullopt;
  const bool direct = trial_file(directory, true).is_open();
  const PageBytes pages = make_pages(kPiece);
  std::memset(pages.get(), 1, static_cast<std::size_t>(kPiece));
  const auto rate = [&](int count) {
    std::vector<File> files;
    for (int i = 0; i < count; ++i) {
      files.push_back(trial_file(directory, direct));
      if (!files.back().is_open()) return 0.0;
      if (!filesystem.is_in_memory()) files.back().reserve(writers * kOfThread / count);
    }
    const auto begin = std::chrono::steady_clock::now();
    parallel_for(static_cast<std::size_t>(writers), writers, [&](std::size_t writer, int) {
      const File& file = files[writer % files.size()];
      const i64 first = count == 1 ? static_cast<i64>(writer) * kOfThread : 0;
      for (i64 at = 0; at < kOfThread; at += kPiece)
        file.pwrite_exact({pages.get(), static_cast<std::size_t>(kPiece)}, first + at);
    });
    parallel_for(files.size(), writers, [&](std::size_t i, int) { files[i].sync(); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(writers * kOfThread) / std::max(taken.count(), 1e-9);
  };
  try {
    const WriteRates rates{writers, rate(1), rate(writers)};
    if (rates.one_file > 0 && rates.several_files > 0) return rates;
  } catch (const Error&) {
    // If the disk fails, writing an output will say so.
  }
  return std::nullopt;
}

bool can_clone_into(const std::filesystem::path& directory, const File& source, i64 block_bytes) {
  const File probe = File::unnamed(directory, false);
  if (!probe.is_open() && (errno == ENOSPC || errno == EDQUOT)) fail_errno(errno, "create a file in", directory);
  if (!probe.is_open() || source.size() < block_bytes) return false;
  try {
    return probe.try_clone_from(source, 0, 0, block_bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::NoSpace) throw;
    // If the disk fails, writing will say so.
    return false;
  }
}

}  // namespace glu_ckpt

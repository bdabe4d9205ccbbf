#include "io/filesystem.hpp"

#include <cerrno>

#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
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
  const File from = File::unnamed(directory, false), to = File::unnamed(directory, false);
  if (!from.is_open() || !to.is_open()) return abilities;
  abilities.known = true;
  abilities.direct = File::unnamed(directory, true).is_open();
  try {
    from.pwrite_exact(std::vector<std::byte>(kClonedBytes), 0);
    abilities.clones = to.try_clone_from(from, 0, 0, kClonedBytes);
  } catch (const Error&) {
    abilities.clones = false;
  }
  return abilities;
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

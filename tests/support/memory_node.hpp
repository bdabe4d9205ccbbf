#pragma once
/// What memory_system.cpp and memory_calls.cpp share: files, directories and links, and what is open of them.

#include <fcntl.h>
#include <sys/stat.h>

#include "support/memory_system.hpp"

namespace glu_ckpt {

struct MemorySystem::Node {
  u64 ino = 0;
  mode_t mode = 0;
  i64 mtime_ns = 0;
  i64 ctime_ns = 0;
  /// Of a file, now and as flushed.
  MemoryBytes bytes;
  MemoryBytes synced_bytes;
  /// Bytes at the front that the filesystem has set apart for the file.
  i64 reserved = 0;
  /// Of a directory.
  std::map<std::string, NodePtr> names;
  std::map<std::string, NodePtr> synced_names;
  std::string target;
  const OpenFile* locked_by = nullptr;

  bool is_directory() const { return S_ISDIR(mode); }
  /// Bytes of blocks that are the file's, at the front or anywhere behind.
  i64 blocks() const {
    constexpr i64 kAll = i64{1} << 60;
    return reserved + bytes.taken(reserved, kAll);
  }
};

struct MemorySystem::OpenFile {
  NodePtr node;
  int flags = 0;
  bool can_write() const { return (flags & O_ACCMODE) != O_RDONLY; }
};

/// A name in a directory, and what it names: null where nothing does.
struct MemorySystem::Place {
  NodePtr parent;
  std::string name;
  NodePtr node;
  /// Without symlinks.
  std::string path;
};

}  // namespace glu_ckpt

#include "format/check_apart.hpp"

#include <algorithm>
#include <vector>

#include "core/fail.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

bool is_named_inside(const fs::path& inner, const fs::path& outer) {
  const auto [end, at] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end() || (std::next(end) == outer.end() && end->empty());
}

/// Returns true for the name of a bind mount in `outer`, too.
bool is_inside(fs::path inner, const fs::path& outer) {
  if (is_named_inside(inner, outer)) return true;
  for (; inner.has_relative_path(); inner = inner.parent_path())
    if (is_same_directory(inner, outer)) return true;
  return false;
}

/// Returns the path without symlinks, "." and "..", though the end of it may not exist yet.
fs::path resolved(const fs::path& path) {
  fs::path there = path;
  fs::path rest;
  while (!path_exists(there) && there != "." && there != there.root_path()) {
    rest = rest.empty() ? there.filename() : there.filename() / rest;
    there = directory_of(there);
  }
  return (canonical_path(there) / rest).lexically_normal();
}

[[noreturn]] void fail_overlap(const fs::path& output, const fs::path& source) {
  fail(ErrorCode::OutputInsideSource, {output.string(), {}},
       "{}: the output and the source {} overlap; the source is never written to", output.string(), source.string());
}

}  // namespace

void check_apart(const fs::path& output, const fs::path& source) {
  const fs::path dst = resolved(output), src = resolved(source);
  if (is_inside(dst, src) || is_inside(src, dst)) fail_overlap(output, source);
}

void check_apart(const fs::path& output, const Source& source) {
  check_apart(output, source.path());
  const fs::path dst = resolved(output);
  const bool is_directory = is_directory_at(source.path());
  const fs::path directory =
      is_directory ? source.path() / source.structure().iteration_dir : directory_of(source.path());
  if (is_directory && is_inside(dst, resolved(directory))) fail_overlap(output, source.path());
  // The index and config.json too, which a cache of the hub has as symlinks to elsewhere.
  std::vector<fs::path> files = {directory / "config.json"};
  if (is_directory)
    for (const std::string& name : list_directory(directory)) files.push_back(directory / name);
  for (const std::string& name : source.inventory().files) files.push_back(directory / name);
  for (const ExtraFile& extra : source.extra_files()) files.push_back(extra.path);
  for (const fs::path& file : files)
    if (is_named_inside(resolved(file), dst))
      fail(ErrorCode::OutputInsideSource, {output.string(), {}},
           "{}: writing it would replace {}, which the source reads; the source is never written to", output.string(),
           file.string());
}

}  // namespace glu_ckpt

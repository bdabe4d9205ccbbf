#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "convert/check_output.hpp"
#include "convert/passes.hpp"
#include "core/fail.hpp"
#include "io/directory.hpp"
#include "io/file_backed.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt {

namespace {

std::filesystem::path parent_of_output(const Conversion& conversion) {
  return directory_of(output_name(conversion.output));
}

/// Smaller blocks, as XFS can have, are not what runs are placed for.
i64 block_bytes_of(const std::filesystem::path& parent) {
  return std::max(kDataPhaseBytes, filesystem_of(parent).block_bytes);
}

/// The files of the source whose blocks tensors are made of.
std::set<const File*> clonable_files(const Source& source) {
  std::set<const File*> files;
  if (const FileBacked* const backed = source.file_backed(); backed != nullptr)
    for (std::size_t t = 0; t < source.inventory().tensors.size(); ++t) files.insert(backed->place(t).file);
  files.erase(nullptr);
  return files;
}

/// Says why nothing of such an output is ever cloned; empty where it may be.
std::string no_clones_text(const Conversion& conversion, int ranks) {
  if (ranks > 1) return "several ranks write all bytes";
  if (conversion.target.format != Format::Safetensors)
    return fmt::format("only safetensors shares blocks with its source, and the output is {}",
                       to_string(conversion.target.format));
  if (clonable_files(*conversion.source.source).empty())
    return "no tensor is stored as the range of a file that the output could share";
  return {};
}

}  // namespace

void check_reflink(const Conversion& conversion, int ranks) {
  const std::string output = conversion.output.string();
  if (const std::string text = no_clones_text(conversion, ranks); !text.empty())
    fail(ErrorCode::Usage, {output, {}}, "{}: --reflink always is not possible: {}", output, text);
  const std::filesystem::path parent = parent_of_output(conversion);
  const i64 block_bytes = block_bytes_of(parent);
  for (const File* const file : clonable_files(*conversion.source.source))
    if (file->size() >= block_bytes && !can_clone_into(parent, *file, block_bytes))
      fail(ErrorCode::Io, {output, {}},
           "{}: --reflink always is not possible: its file system ({}) does not share blocks with {}. Without the "
           "option all bytes are written",
           output, filesystem_of(parent).type, file->path().string());
}

ClonePlan choose_clones(const Conversion& conversion) {
  const Reflink reflink = conversion.options.reflink;
  // Blocks that are shared are not freed with the source's file.
  if (conversion.consumed != nullptr || conversion.options.part.of > 0) return {};
  if (reflink == Reflink::Never || conversion.target.format != Format::Safetensors) return {};
  const std::filesystem::path parent = parent_of_output(conversion);
  CloneLimits limits{block_bytes_of(parent)};
  if (reflink == Reflink::Always) limits.min_bytes = limits.min_even_bytes = 0;
  // check_reflink() has tried it where all is to be cloned.
  ClonePlan clones(conversion.plan, *conversion.source.source, limits, [&](const File& file) {
    return reflink == Reflink::Always || can_clone_into(parent, file, limits.block);
  });
  // Clones cost the whole output its digest, so a small part is not cloned.
  if (reflink == Reflink::Auto && clones.bytes() < conversion.plan.bytes / 2) return {};
  return clones;
}

}  // namespace glu_ckpt

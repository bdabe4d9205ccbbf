#include "convert/disk_room.hpp"

#include <fmt/format.h>

#include "convert/check_output.hpp"
#include "core/readable.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {

DiskRoom disk_room(const Conversion& conversion, i64 bytes_written) {
  constexpr i64 kHeaderBytes = 256;
  DiskRoom room{bytes_written + kHeaderBytes * std::ssize(conversion.plan.outputs),
                filesystem_of(directory_of(output_name(conversion.output)))};
  for (const ExtraFile& extra : conversion.source.source->extra_files())
    room.needed += File::open_read(extra.path).size();
  return room;
}

std::string to_text(const DiskRoom& room) {
  const i64 free = room.filesystem.free_bytes;
  std::string text = fmt::format("the output needs {} on {}, where {} are free", size_text(room.needed),
                                 room.filesystem.type, size_text(free));
  if (!room.is_enough()) text += fmt::format(": {} are missing", size_text(room.needed - free));
  return text;
}

}  // namespace glu_ckpt

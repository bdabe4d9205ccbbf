#pragma once
/// Signatures, sizes and flags of the zip format (APPNOTE 6.3), as its reader and its writer need them. All
/// numbers are little-endian.

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::zip {

inline constexpr u32 kLocalSignature = 0x04034b50;
inline constexpr u32 kDescriptorSignature = 0x08074b50;
inline constexpr u32 kCentralSignature = 0x02014b50;
inline constexpr u32 kEnd64Signature = 0x06064b50;
inline constexpr u32 kLocatorSignature = 0x07064b50;
inline constexpr u32 kEndSignature = 0x06054b50;

/// The sizes of headers without the names, extra fields and comments that follow.
inline constexpr i64 kLocalBytes = 30;
inline constexpr i64 kCentralBytes = 46;
inline constexpr i64 kEnd64Bytes = 56;
inline constexpr i64 kLocatorBytes = 20;
inline constexpr i64 kEndBytes = 22;

/// The length that the zip64 end record states for itself: signature and length itself do not count.
inline constexpr i64 kEnd64Length = kEnd64Bytes - 12;

/// The extra field with the 64-bit values of saturated 32-bit fields.
inline constexpr std::uint16_t kZip64Id = 0x0001;
/// A field with one of these values is saturated: the zip64 structures hold the real value.
inline constexpr std::uint16_t kSaturated16 = 0xFFFF;
inline constexpr u32 kSaturated32 = 0xFFFFFFFF;

inline constexpr std::uint16_t kFlagEncrypted = 1 << 0;
/// Crc and sizes follow the data; the local header has zeros instead.
inline constexpr std::uint16_t kFlagDescriptor = 1 << 3;
inline constexpr std::uint16_t kFlagUtf8 = 1 << 11;

inline constexpr std::uint16_t kStored = 0;

}  // namespace glu_ckpt::zip

#include "tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tensor/printable.h"
#include "tensor/safetensors_header.h"

namespace quire {
namespace {

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // as the format says
constexpr std::uint64_t kFolderTensorsMax = 1 << 20;    // of a folder

struct NamedType {
  std::string_view name;
  DType type;
};
constexpr NamedType kNamedTypes[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}};

struct RawType {
  std::string_view name;
  std::size_t bytes;
};
constexpr RawType kRawTypes[] = {{"BOOL", 1},    {"U8", 1},      {"I8", 1},   {"F8_E4M3", 1},
                                 {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2},  {"I16", 2},
                                 {"U32", 4},     {"I32", 4},     {"U64", 8},  {"I64", 8},
                                 {"F64", 8},     {"F16", 2},     {"BF16", 2}, {"F32", 4}};

template <class Named>
const Named* find_named(const std::vector<Named>& sorted, std::string_view name) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                                   [](const Named& a, std::string_view b) { return a.name < b; });
  return at != sorted.end() && at->name == name ? &*at : nullptr;
}

Status check_size(const TensorClaim& claim, std::uint64_t element_bytes, bool may_be_empty) {
  std::uint64_t size = element_bytes;
  for (const std::uint64_t extent : claim.shape) {
    if (extent == 0 && !may_be_empty) return Error{Code::corrupt, "has a dimension of 0"};
    if (__builtin_mul_overflow(size, extent, &size))
      return Error{Code::corrupt, "has an impossible shape"};
  }
  if (claim.end - claim.begin != size)
    return Error{Code::corrupt,
                 fmt::format("of type {} and shape [{}] has {} bytes, {} are needed", claim.type,
                             fmt::join(claim.shape, ", "), claim.end - claim.begin, size)};
  return {};
}

}  // namespace

std::size_t raw_type_bytes(std::string_view type) {
  const auto known = std::ranges::find(kRawTypes, type, &RawType::name);
  return known == std::end(kRawTypes) ? 0 : known->bytes;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                               const std::string& name) {
  const auto bad = [&](std::string_view message) {
    return Error{Code::corrupt, fmt::format("{}: {}", name, message)};
  };
  std::uint64_t length;
  if (bytes.size() < sizeof length) return bad("is too short for a safetensors file");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length || length > kHeaderBytesMax)
    return bad(fmt::format("claims a header of {} bytes in a file of {}; is the download complete?",
                           length, bytes.size()));
  const auto data = bytes.subspan(sizeof length + length);
  auto header = read_safetensors_header(
      {reinterpret_cast<const char*>(bytes.data() + sizeof length), length});
  if (!header.ok()) return bad(header.error().message);

  std::vector<TensorClaim>& claims = header.value();
  const auto by_name = [](const auto& x, const auto& y) { return x.name < y.name; };
  std::sort(claims.begin(), claims.end(), by_name);
  const auto twice = std::adjacent_find(
      claims.begin(), claims.end(), [](const auto& x, const auto& y) { return x.name == y.name; });
  if (twice != claims.end())
    return bad(fmt::format("tensor {} appears twice", printable(twice->name)));

  SafetensorsFile file;
  file.name_ = name;
  std::sort(claims.begin(), claims.end(), [](const auto& x, const auto& y) {
    return std::pair(x.begin, x.end) < std::pair(y.begin, y.end);  // an empty one comes first
  });
  std::uint64_t end = 0;
  for (TensorClaim& claim : claims) {
    const std::string what = "tensor " + printable(claim.name);
    if (claim.begin > claim.end || claim.end > data.size())
      return bad(fmt::format("{} lies at {} to {} of {} bytes of data; is the download complete?",
                             what, claim.begin, claim.end, data.size()));
    if (claim.begin < end) return bad(what + " overlaps another");
    end = claim.end;
    const auto known = std::find_if(std::begin(kNamedTypes), std::end(kNamedTypes),
                                    [&](const NamedType& t) { return t.name == claim.type; });
    const bool is_foreign = known == std::end(kNamedTypes);
    const auto bytes_of = data.subspan(claim.begin, claim.end - claim.begin);
    if (const std::size_t element = raw_type_bytes(claim.type); element != 0)
      if (const Status size = check_size(claim, element, is_foreign); !size.ok())
        return bad(what + " " + size.error().message);
    if (is_foreign)
      file.foreign_.push_back(
          {std::move(claim.name), std::move(claim.type), std::move(claim.shape), bytes_of});
    else
      file.tensors_.push_back(
          {std::move(claim.name), known->type, std::move(claim.shape), bytes_of});
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(), by_name);
  std::sort(file.foreign_.begin(), file.foreign_.end(), by_name);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  TRY(MappedFile mapped, MappedFile::open(path));
  TRY(SafetensorsFile file, parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

const RawTensor* SafetensorsFile::foreign(std::string_view tensor) const {
  return find_named(foreign_, tensor);
}

std::optional<RawTensor> SafetensorsFile::raw(std::string_view name) const {
  if (const RawTensor* other = foreign(name)) return *other;
  const TensorView* found = find_named(tensors_, name);
  if (found == nullptr) return {};
  return RawTensor{found->name, std::string(dtype_info(found->type).name), found->shape,
                   found->data};
}

bool SafetensorsFile::has(std::string_view tensor) const {
  return find_named(tensors_, tensor) || foreign(tensor);
}

Result<const TensorView*> SafetensorsFile::tensor(std::string_view name) const {
  if (const TensorView* found = find_named(tensors_, name)) return found;
  if (const RawTensor* other = foreign(name))
    return Error{Code::unsupported,
                 fmt::format("{}: tensor '{}' is of type {}; F32, F16 and BF16 are supported",
                             name_, name, printable(other->type))};
  return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", name_, name)};
}

Status SafetensorsFile::check_types() const {
  if (foreign_.empty()) return {};
  return tensor(foreign_.front().name).error();
}

void SafetensorsFile::drop_pages(std::span<const std::byte> part) const {
  if (holds(part)) file_.drop_pages(part);
}

Result<SafetensorsFolder> SafetensorsFolder::open(const std::string& folder) {
  namespace fs = std::filesystem;
  SafetensorsFolder set;
  set.folder_ = folder;
  std::vector<std::string> names{"model.safetensors"};
  const std::string index = (fs::path(folder) / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (fs::exists(index, ignored)) {
    TRY(const MappedFile text, MappedFile::open(index));
    const auto bytes = text.bytes();
    if (bytes.size() > kHeaderBytesMax)
      return Error{Code::corrupt, fmt::format("{}: is too large ({} bytes)", index, bytes.size())};
    TRY(names, shards_of_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index));
  }
  std::uint64_t tensor_count = 0;
  for (const std::string& name : names) {
    TRY(SafetensorsFile file, SafetensorsFile::open((fs::path(folder) / name).string()));
    tensor_count += file.tensors().size() + file.others().size();
    if (tensor_count > kFolderTensorsMax)
      return Error{Code::corrupt,
                   fmt::format("{}: has more than {} tensors", folder, kFolderTensorsMax)};
    for (const TensorView& tensor : file.tensors())
      if (const SafetensorsFile* other = set.holder(tensor.name))
        return Error{Code::corrupt, fmt::format("{}: tensor {} is in {} too", file.name(),
                                                printable(tensor.name), other->name())};
    set.files_.push_back(std::move(file));
  }
  return set;
}

const SafetensorsFile* SafetensorsFolder::holder(std::string_view tensor) const {
  for (const SafetensorsFile& file : files_)
    if (file.has(tensor)) return &file;
  return nullptr;
}

bool SafetensorsFolder::has(std::string_view tensor) const { return holder(tensor) != nullptr; }

Result<const TensorView*> SafetensorsFolder::tensor(std::string_view name) const {
  if (const SafetensorsFile* file = holder(name)) return file->tensor(name);
  return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", folder_, name)};
}

std::optional<RawTensor> SafetensorsFolder::raw(std::string_view name) const {
  const SafetensorsFile* file = holder(name);
  return file ? file->raw(name) : std::nullopt;
}

void SafetensorsFolder::drop_pages(std::span<const std::byte> part) const {
  for (const SafetensorsFile& file : files_) file.drop_pages(part);
}

void SafetensorsFolder::detach() {
  for (SafetensorsFile& file : files_) file.detach();
}

}  // namespace quire

# cmake -DIMAGE=FILE -DSOURCE=FILE -P EmbedImage.cmake: the image's bytes as a C++ source.
file(READ "${IMAGE}" bytes HEX)
string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE "${SOURCE}" "#include \"cuda/move_kernel_image.h\"
namespace aquifer {
alignas(64) static const unsigned char kBytes[] = {
${bytes}};
const std::span<const unsigned char> kMoveKernelImage(kBytes);
}  // namespace aquifer
")

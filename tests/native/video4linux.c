// A camera for programs that read Video4Linux: what they call of the C library, for the path that CAMERA_STAND_IN names. Its
// frames are YUYV, 28 x 28, of a picture in the file CAMERA_PICTURE; after CAMERA_FRAMES it is unplugged. Preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIDE = 28, STRIDE = 2 * SIDE, BYTES = STRIDE * SIDE, BUFFERS = 4 };

static int camera = -1;
static unsigned char memory[BUFFERS][BYTES];
static int queued[BUFFERS], given, last;

int open(const char* path, int flags, ...) {
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  const char* ours = getenv("CAMERA_STAND_IN");
  if (ours == NULL || strcmp(path, ours) != 0) return real(path, flags, mode);
  if (getenv("CAMERA_BUSY") != NULL) return errno = EBUSY, -1;
  return camera = real("/dev/null", O_RDWR);
}

int poll(struct pollfd* files, nfds_t count, int timeout) {
  int (*real)(struct pollfd*, nfds_t, int) = (int (*)(struct pollfd*, nfds_t, int))dlsym(RTLD_NEXT, "poll");
  return files[0].fd == camera ? 1 : real(files, count, timeout);
}

void* mmap(void* start, size_t bytes, int protection, int flags, int file, off_t offset) {
  void* (*real)(void*, size_t, int, int, int, off_t) =
      (void* (*)(void*, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  return file >= 0 && file == camera ? memory[offset / BYTES] : real(start, bytes, protection, flags, file, offset);
}

int munmap(void* start, size_t bytes) {
  int (*real)(void*, size_t) = (int (*)(void*, size_t))dlsym(RTLD_NEXT, "munmap");
  const char* at = start;
  return at >= (char*)memory && at < (char*)memory + sizeof memory ? 0 : real(start, bytes);
}

static void shoot(unsigned char* to) {
  memset(to, 128, BYTES);
  FILE* file = fopen(getenv("CAMERA_PICTURE"), "rb");
  for (int k = 0; k < SIDE * SIDE; ++k) to[2 * k] = (unsigned char)fgetc(file);
  fclose(file);
}

int ioctl(int file, unsigned long request, ...) {
  int (*real)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
  va_list rest;
  va_start(rest, request);
  void* given_to = va_arg(rest, void*);
  va_end(rest);
  if (file != camera || camera < 0) return real(file, request, given_to);
  struct v4l2_buffer* buffer = given_to;
  switch (request) {
    case VIDIOC_QUERYCAP:
      ((struct v4l2_capability*)given_to)->capabilities = V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
      return 0;
    case VIDIOC_G_FMT:
      return 0;
    case VIDIOC_S_FMT: {
      struct v4l2_pix_format* format = &((struct v4l2_format*)given_to)->fmt.pix;
      format->pixelformat = V4L2_PIX_FMT_YUYV;
      format->width = format->height = SIDE;
      format->bytesperline = STRIDE;
      format->sizeimage = BYTES;
      format->colorspace = V4L2_COLORSPACE_SRGB;
      format->quantization = V4L2_QUANTIZATION_FULL_RANGE;
      return 0;
    }
    case VIDIOC_REQBUFS:
      ((struct v4l2_requestbuffers*)given_to)->count = BUFFERS;
      return 0;
    case VIDIOC_QUERYBUF:
      buffer->length = BYTES;
      buffer->m.offset = buffer->index * BYTES;
      return 0;
    case VIDIOC_QBUF:
      queued[buffer->index] = 1;
      return 0;
    case VIDIOC_STREAMON:
      return 0;
    case VIDIOC_DQBUF:
      // Two frames are ready each time, so that one of them is passed over.
      if (given > 0 && given % 2 == 0 && !last) return last = 1, errno = EAGAIN, -1;
      last = 0;
      if (given >= atoi(getenv("CAMERA_FRAMES"))) return errno = ENODEV, -1;
      for (unsigned k = 0; k < BUFFERS; ++k)
        if (queued[k]) {
          queued[k] = 0;
          shoot(memory[k]);
          buffer->index = k;
          return ++given, 0;
        }
      return errno = EIO, -1;  // the program keeps all buffers
    default:
      return errno = EINVAL, -1;
  }
}

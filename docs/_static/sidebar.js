/* Scrolls the course on the left so that the reader sees where they are. */
const here = document.querySelector('.bd-sidebar-primary .course [aria-current="page"]');
const side = here?.closest('.bd-sidebar-primary');
if (side && here.getBoundingClientRect().bottom > side.getBoundingClientRect().bottom) {
  side.scrollTop += here.getBoundingClientRect().top - side.getBoundingClientRect().top - side.clientHeight / 3;
}
